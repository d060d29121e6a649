"""Predicts labelled examples with a run of a task: records, files and splits, with their metrics."""

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep.core.files import write_json, write_text
from lmrep.core.sharding import make_mesh, replicated
from lmrep.data import records as labelled_data
from lmrep.data.records import Record, tfds
from lmrep.data.records.encoding import Units
from lmrep.data.records.examples import Examples
from lmrep.experiment import build, data_sets, task_data
from lmrep.experiment.config import Experiment, resolve_stages, stage_at
from lmrep.experiment.record import Data
from lmrep.inference import ensemble
from lmrep.inference.encode import batch_size, batch_tokens
from lmrep.metrics import verdict
from lmrep.metrics.bootstrap import bootstrap
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import TASKS, bag_of_words, frozen_features
from lmrep.tasks.base import Outputs, Result, collate
from lmrep.tasks.known import KNOWN
from lmrep.training.evaluation import Predictor
from lmrep.training.metrics_log import validations

FOLDER = "predictions"  # of the workdir
RESULTS = "results.json"  # of the workdir: what a run is compared with, and the metrics of a task's best checkpoint

log = logging.getLogger(__name__)


def predict_records(
    run: Any, records: Sequence[Record], name: str = "texts", examples: Examples | None = None, first: int = 0,
) -> Result:
    """Predicts records, and computes metrics if all records have targets. More than a batch of them is computed on all
    devices of this process.

    Args:
      run: a loaded run (`lmrep.inference.run.Run`) of a task, or an ensemble of several (`load`).
      name: the records' name in logs.
      examples: the tokenized records, if they exist already.
      first: the number of the first record, for tasks that sample texts: the samples depend on the record's number.

    Raises:
      UserError: the task cannot use a record; a text is too long, or not Unicode.
    """
    stage = stage_at(run.experiment, run.step)
    task = data_sets.task_of(run.experiment)
    units, outputs = _outputs(run, records, name, examples, first)
    if run.others:
        parts = [(units, outputs), *(_outputs(other, records, name) for other in run.others)]
        units, outputs = ensemble.averaged(parts, len(records), stage.objective_name)
    return task.score(stage.objective, records, units, outputs)


def _outputs(
    run: Any, records: Sequence[Record], name: str, examples: Examples | None = None, first: int = 0,
) -> tuple[Units, Outputs]:
    """Computes the outputs of one run; the arguments are those of `predict_records`."""
    stage = stage_at(run.experiment, run.step)
    if examples is None:
        for record in records:
            data_sets.task_of(run.experiment).check(stage.objective, record)
        examples = task_data.tokenize_records(run.experiment, run.model, run.tokenizer, records, name)
    examples = build.add_columns(examples, stage, run.frozen)
    # A few texts are not worth a copy of the parameters for each device.
    devices = jax.local_device_count() if examples.lengths.sum() > batch_tokens() else 1
    predictor = _predictor(run.objective.predict, devices)
    outputs = predictor.outputs(jax.device_put(run.params, replicated(predictor.mesh)), (
        batch | {"unit": np.where(batch["unit"] < 0, -1, batch["unit"] + first)}
        for batch in batches(examples, devices)))
    outputs = [batch | {"unit": np.where(batch["unit"] < 0, -1, batch["unit"] - first)} for batch in outputs]
    return examples.units, collate(outputs, examples.units)


def task_config(run: Any, source: str = "") -> Any:
    """Returns the config of a run's task for a source of its mixture; "" for the shared one. Raises UserError for an
    unknown source."""
    return data_sets.config_of(run.experiment, source)


def with_tuned(experiment: Experiment, directory: Path, step: int) -> Experiment:
    """Returns the experiment of the run in `directory` with the values that were tuned in validation: a field of the
    task's config that is None gets the value of the metric of the same name, as of checkpoint `step`."""
    task = TASKS.get(experiment.objective["name"])
    names = [field for field, value in experiment.objective.items()
             if value is None and task and field in task.objective.metrics]
    if not names:
        return experiment
    known = [line for line in validations(directory) if line["step"] <= step]
    values, validated = {}, any(line["step"] == step for line in known)
    for field in names:
        tuned = next((line for line in reversed(known) if field in line), None)
        if not validated:
            log.info("%s has no validation at step %s: %s is %s", directory, f"{step:,}", field,
                     f"that of step {tuned['step']:,}" if tuned else 0)
        values[field] = float(tuned[field]) if tuned else 0.0
    return dataclasses.replace(experiment, objective=experiment.objective | values)


def batches(examples: Examples, devices: int = 1) -> Iterator[dict[str, np.ndarray]]:
    """Yields all sequences in batches, sorted by length. A batch has about as many tokens as suit the backend, and a
    multiple of `devices` sequences, filled up with empty ones."""
    tokens = devices * batch_tokens()
    order = np.argsort(examples.lengths, kind="stable")
    while len(order):
        length = examples.bucket(examples.lengths[order[0]])
        fitting = int(np.searchsorted(examples.lengths[order], length, "right"))
        size = batch_size(length * max(1, examples.group), tokens)
        while size // 4 >= fitting:  # few shapes are compiled
            size //= 4
        size = -(-size // devices) * devices
        chosen = order[: min(size, fitting)]
        order = order[len(chosen):]
        yield examples.gather(np.pad(chosen, (0, size - len(chosen)), constant_values=-1),
                              examples.batch_length(chosen))


@functools.lru_cache(maxsize=4)
def _predictor(predict: Callable, devices: int) -> Predictor:
    """Compiles an objective's `predict` for the first `devices` devices of this process, and batches of any multiple of
    their number."""
    return Predictor(predict, make_mesh(data=devices, devices=jax.local_devices()[:devices]), devices)


def name_of(files: str) -> str:
    """Names the predictions for other files: for tfds:glue/ax:test "ax", for its train split "ax-train"."""
    if files.startswith(tfds.PREFIX):
        dataset, split = tfds.dataset_and_split(files)
        names = [name for name in Path(dataset.partition(":")[0]).parts if not name[0].isdigit()]  # without a version
        stems = [names[-1] if names else "", "" if split == "test" else split]
    else:
        stems = [Path(file).name.partition("*")[0].partition(".")[0] for file in files.split(",")]
    return "-".join(filter(None, stems))[:100] or "files"


def intervals(result: Result) -> dict[str, list[float]]:
    """Returns {metric: [low, high]}, the bootstrap 95 % intervals of the metrics that have one."""
    known = {**TASK_METRICS, **result.own_metrics}
    if result.sources:
        return {f"{source}/{name}": interval for source, part in result.sources.items()
                for name, interval in intervals(part).items()}
    return {name: list(bootstrap(known[name], result.gold, result.predicted, **result.options.get(name, {})))
            for name in result.metrics if name in known and result.gold}


def finite_or_text(values: Mapping[str, float]) -> dict[str, float | str]:
    """Converts metrics for JSON, which has no NaN or infinity: these become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def comparison_rows(directory: Path) -> list[verdict.Row]:
    """Reads the rows of `lmrep.metrics.verdict.comparison` in results.json; [] where there are none, or it is
    damaged."""
    try:
        content = json.loads((directory / RESULTS).read_bytes())
        return [verdict.Row(row["kind"], row["title"], {name: float(value) for name, value in row["metrics"].items()})
                for row in content["comparison"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def keep_bag_of_words(directory: Path) -> None:
    """Removes results.json, which is written at the end, except for the row of the bag of words."""
    if row := bag_of_words_row(directory):
        write_results(directory, [row])
    else:
        (directory / RESULTS).unlink(missing_ok=True)


def bag_of_words_row(directory: Path) -> verdict.Row | None:
    """Reads the row of the bag of words in results.json; None where there is none."""
    return next((row for row in comparison_rows(directory) if row.kind == verdict.BAG_OF_WORDS), None)


def compare_with_bag_of_words(directory: Path, data: Data) -> verdict.Row | None:
    """Returns the row of the bag of words in results.json or, the first time, computes it. None for tasks without one,
    and where it fails, which is a warning."""
    name = data.experiment.objective["name"]
    if row := bag_of_words_row(directory):
        return row
    if name not in bag_of_words.TASK_NAMES or data.experiment.sources or "validation" not in data.records:
        return None
    try:
        result, texts = bag_of_words.evaluate(
            name, resolve_stages(data.experiment)[0].objective, data.records["train"], data.records["validation"])
    except Exception as error:  # the run is complete without it
        log.warning("the bag of words, which the run is compared with, could not be computed: %s", error)
        return None
    some = f" (of {texts:,} training texts)" if texts < len(data.records["train"]) else ""
    return verdict.Row(verdict.BAG_OF_WORDS, f"a bag of words{some}", result.metrics) if result.metrics else None


def write_results(
    directory: Path, rows: Sequence[verdict.Row], run: Any = None, results: Mapping[str, Result] = {},
    bounds: Mapping[str, Mapping[str, list[float]]] = {},
) -> None:
    """Writes results.json: what a run is compared with and, for a task, the metrics of the loaded `run` on each split
    of `results`, their intervals in `bounds`, and the weights that it learned for mixing frozen layers."""
    evaluations = [{"step": run.step, "split": split, "examples": len(result.predictions),
                    "metrics": finite_or_text(result.metrics), "intervals": {
                        name: ends for name, ends in bounds[split].items() if all(map(math.isfinite, ends))}}
                   for split, result in results.items() if result.metrics]
    mixes = []
    if run is not None:
        c = stage_at(run.experiment, run.step).objective
        mixes = frozen_features.mixes(run.params, c, run.objective.name, run.frozen)
    write_json(directory / RESULTS, {
        "evaluations": evaluations, **({"mixes": mixes} if mixes else {}),
        "comparison": [row._asdict() | {"metrics": finite_or_text(row.metrics)} for row in rows]})


def write(run: Any, name: str, records: Sequence[Record], result: Result) -> list[Path]:
    """Writes predictions/NAME.jsonl, with a line for each record: its id, its source in a mixture, its fields, and its
    `prediction`; and the task's submission files. Returns their paths."""
    stage = stage_at(run.experiment, run.step)
    task, folder = data_sets.task_of(run.experiment), run.directory / FOLDER
    paths = [folder / f"{name}.jsonl"]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(paths[0], "".join(
        json.dumps({"id": record.id, **({"source": record.source} if record.source else {}), **record.fields,
                    "prediction": prediction}, ensure_ascii=False) + "\n"
        for record, prediction in zip(records, result.predictions, strict=True)))
    known = KNOWN.get(run.experiment.name)
    wanted = known.submissions if known and known.task == stage.objective_name else {}  # texts are in another form
    names = [name, *([name_of(getattr(run.experiment.data, name))] if name in labelled_data.SPLITS else [])]
    submissions = task.submission(stage.objective, records, result) if task.submission else {}
    for file, text in submissions.items():
        own = f"{name}{Path(file).suffix}" if file.startswith("predictions") else f"{name}-{file}"
        paths.append(folder / next((wanted[each] for each in names if each in wanted), own))
        write_text(paths[-1], text)
    log.info("predictions: %s", ", ".join(map(str, paths)))
    return paths
