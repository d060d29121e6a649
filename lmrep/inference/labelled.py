"""Predictions of a run that was trained for a task: for records of files, and for texts."""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep.core.files import write_text
from lmrep.core.sharding import batch_sharding, make_mesh, replicated, use_mesh
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.experiment import build
from lmrep.experiment.config import Experiment, stage_at
from lmrep.experiment.task_data import tokenized
from lmrep.experiment.task_sources import config_of, task_of
from lmrep.inference.encode import BATCH, BATCH_ELSEWHERE
from lmrep.tasks import TASKS
from lmrep.tasks.base import Result, collate
from lmrep.training.metrics_log import validations

log = logging.getLogger(__name__)

IN_FLIGHT = 4  # batches that the devices may be ahead of the host


def predict_records(
    run: Any, own: Sequence[Record], name: str = "texts", examples: Examples | None = None, first: int = 0,
) -> Result:
    """The predictions of a run for records, and their metrics if all records have targets. More than a
    batch of them is computed on all devices of this process.

    Args:
      run: a loaded one (`lmrep.inference.run.Run`) that was trained for a task.
      own: the records.
      name: of them, for logs.
      examples: their examples, where they have been made.
      first: the number of the first one, where texts are drawn: the draws of a text depend on its number.

    Raises:
      UserError: the task cannot use a record; a text is too long, or not Unicode.
    """
    stage = stage_at(run.experiment, run.step)
    task = task_of(run.experiment)
    if examples is None:
        for record in own:
            task.check(stage.objective, record)
        examples = tokenized(run.experiment, run.model, run.tokenizer, own, name)
    examples = build.add_columns(examples, stage, run.frozen)
    # A few texts are not worth a copy of the parameters for each device.
    devices = jax.local_device_count() if examples.lengths.sum() > _batch_tokens() else 1
    outputs, pending, predict = [], [], _predictor(run, devices)
    for batch in batches(examples, devices):
        places = {name: batch[name] for name in ("unit", "first", "last")}
        pending.append((places, predict(batch | {"unit": batch["unit"] + first * (batch["unit"] >= 0)})))
        if len(pending) > IN_FLIGHT:
            outputs.append(_fetched(*pending.pop(0)))
    outputs += [_fetched(*each) for each in pending]
    return task.score(stage.objective, own, examples.units, collate(outputs, examples.units))


def task_config(run: Any, source: str = "") -> Any:
    """The config of a run's task for examples of a source of its mixture; "" for those of none. Raises UserError for an
    unknown source."""
    return config_of(run.experiment, source)


def with_tuned(experiment: Experiment, directory: Path, step: int) -> Experiment:
    """The experiment of the run in `directory`, with what validation found for the checkpoint `step`: a
    field of the task's config that is None has the value of the metric of its name."""
    task = TASKS.get(experiment.objective["name"])
    names = [field for field, value in experiment.objective.items()
             if value is None and task and field in task.objective.metrics]
    if not names:
        return experiment
    known = [line for line in validations(directory) if line["step"] <= step]
    values, validated = {}, any(line["step"] == step for line in known)
    for field in names:
        found = next((line for line in reversed(known) if field in line), None)
        if not validated:
            log.info("%s has no validation at step %s: %s is %s", directory, f"{step:,}", field,
                     f"that of step {found['step']:,}" if found else 0)
        values[field] = float(found[field]) if found else 0.0
    return dataclasses.replace(experiment, objective=experiment.objective | values)


def _batch_tokens() -> int:
    return BATCH.get(jax.default_backend(), BATCH_ELSEWHERE)


def batches(examples: Examples, devices: int = 1) -> Iterator[dict[str, np.ndarray]]:
    """All sequences, sorted by length, in batches of as many tokens as suit the backend, and of a multiple of `devices`
    sequences; empty sequences fill them."""
    tokens = devices * _batch_tokens()
    order = np.argsort(examples.lengths, kind="stable")
    while len(order):
        length = examples.bucket(examples.lengths[order[0]])
        fitting = int(np.searchsorted(examples.lengths[order], length, "right"))
        size = max(1, tokens // (length * max(1, examples.group)))
        while size // 4 >= fitting:  # few shapes are compiled
            size //= 4
        size = -(-size // devices) * devices
        chosen = order[: min(size, fitting)]
        order = order[len(chosen):]
        yield examples.gather(np.pad(chosen, (0, size - len(chosen)), constant_values=-1),
                              examples.batch_length(chosen))


@functools.lru_cache(maxsize=4)
def _predictor(run: Any, devices: int) -> Callable[[dict[str, np.ndarray]], dict]:
    """batch -> the outputs of `predict`, on this process's first `devices` devices."""
    predict = jax.jit(run.objective.predict)
    if devices == 1:
        return functools.partial(predict, run.params)
    mesh = make_mesh(data=devices, devices=jax.local_devices()[:devices])
    params = jax.device_put(run.params, replicated(mesh))

    def sharded(batch: dict[str, np.ndarray]) -> dict:
        with use_mesh(mesh):
            return predict(params, jax.device_put(batch, batch_sharding(mesh)))

    return sharded


def _fetched(places: dict, outputs: dict) -> dict:
    return {**jax.device_get(outputs), **places}


def write_predictions(path: Path, own: Sequence[Record], result: Result) -> None:
    """Predictions as JSON Lines: the record's id, its source in a mixture, its fields, and under `prediction` what was
    predicted."""
    lines = [json.dumps({"id": record.id, **({"source": record.source} if record.source else {}), **record.fields,
                         "prediction": prediction}, ensure_ascii=False)
             for record, prediction in zip(own, result.predictions, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")
