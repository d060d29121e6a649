"""Evaluates a trained run on text: the metrics of its objective, or its sliding-window perplexity."""

import dataclasses
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.config.record import read
from lmrep.core import remote
from lmrep.core.errors import ConfigError, UserError
from lmrep.core.files import write_json
from lmrep.core.host import default_data_dir
from lmrep.core.params import Tree, unflatten
from lmrep.core.paths import as_path, as_paths
from lmrep.core.sharding import make_mesh, shardings
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import loader
from lmrep.data.dataset import Dataset
from lmrep.data.records import Record
from lmrep.data.store.scan import documents
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import ResolvedStage, stage_at
from lmrep.inference import evaluate_task, reading_times
from lmrep.inference import pairs as minimal_pairs
from lmrep.inference import suite as suites
from lmrep.inference.load import load, objective_params, with_teachers
from lmrep.inference.perplexity import perplexity, windows
from lmrep.inference.pointer import Pointer, with_pointer
from lmrep.inference.run import Run
from lmrep.models.base import Context
from lmrep.objectives.base import Objective
from lmrep.storage import remote_workdir
from lmrep.storage.jsonl import append
from lmrep.tasks.base import Result
from lmrep.training.evaluation import Evaluator, NoTargets
from lmrep.training.state import SHARED, specs_of, with_shared

# what is evaluated -> the arguments of `evaluate` that it takes; "" for the objective's metrics
TAKES = {"pairs": ("pll", "end_mark"), "suite": ("pll", "predictions"), "stride": ("files", "split", "length"),
         "": ("files", "split", "length", "batch_size", "source", "search", "ensemble", "pointer")}

log = logging.getLogger(__name__)


def evaluate(
    directory: str | os.PathLike, *, split: str | None = None, data_dir: str | os.PathLike | None = None,
    examples: int | None = None, step: int | None = None, files: str = "", stride: int | None = None,
    length: int | None = None, pairs: str | os.PathLike = "", pll: str = "", batch_size: int | None = None,
    model: Mapping[str, Any] = MappingProxyType({}), search: Mapping[str, Any] = MappingProxyType({}),
    source: str = "", end_mark: bool = False, pointer: Mapping[str, Any] = MappingProxyType({}), ensemble: str = "",
    suite: str | os.PathLike = "", predictions: str | os.PathLike = "",
) -> dict[str, Any]:
    """Returns the metrics of a run on a split of its corpus, on other files, or on minimal pairs. Writes them to
    eval.json in the workdir, and appends them to eval.jsonl, which keeps every evaluation.

    A run of a task also writes its predictions to predictions/ and the intervals of its metrics to eval.json. `files`
    must then have the form of its training files.

    With a `stride`, the metrics are the `Perplexity.figures` of the raw documents under a run that predicts from left
    to right; see `perplexity`. With `pairs`, they are the accuracies that `pairs.evaluate` returns; with a `suite`, the
    accuracies and correlations of `suite.evaluate`.

    Args:
      directory: the workdir.
      split: "train", "validation" or "test"; None for "validation" of a task, and "test" otherwise.
      data_dir: the directory of token stores.
      examples: the number of examples, from the first on; None for all. For a task, they are taken at equal distances;
        with a stride, it is the number of documents; with pairs, of pairs of each paradigm; with a suite, of lines of
        each subset of a file.
      step: of the checkpoint; None for the default one (`load`).
      files: a glob of text files to use instead of a split. A file is a document; without a stride, the documents of a
        single file are separated by blank lines, or as the run's config says (`data.documents`).
      stride: tokens between the starts of two windows.
      length: tokens in a window, or, without a stride, in an example; None for the length that the run was trained
        with, or, for windows of a converted checkpoint, the longest that its network takes.
      pairs: a directory of minimal pairs, JSON Lines in the form of BLiMP, to use instead of a split.
      pll: with pairs or a suite, how a masked language model scores sentences: "" masks one token at a time,
        "word_l2r" the later tokens of the same word too; "log_probability" of XLNet's objective predicts from left to
        right.
      batch_size: examples in a batch; None for that of training. Where examples continue each other, the text is split
        into as many parts, each of which starts without a memory.
      model: fields of the network that differ from training (`load`), as `{"memory": 640, "clamp": 400}`.
      search: how texts are generated, where that differs, as `{"beams": 4, "length_penalty": 0.6}`.
      source: for a run on a mixture of labelled data sets, the set whose split is evaluated, or whose form `files`
        have; "" for all.
      end_mark: with pairs, whether a model that predicts from left to right is scored on the token that ends a document
        too.
      pointer: fields of the `Pointer` with which a recurrent language model is evaluated too, as `{"window": 2000}`;
        empty for none.
      ensemble: for a task, workdirs of other runs, whose probabilities are averaged with this one's (`load`).
      suite: a directory of zero-shot tasks, JSON Lines in the forms of `suite.FORMS`, and tables of
        reading times (`reading_times.read`), to use instead of a split.
      predictions: a directory to which `suite.write_predictions` writes those of the suite.

    Raises:
      UserError: there is no such run, split, text or checkpoint; a stride is given for a run that does not predict from
        left to right; pairs or the suite are malformed, or the run's objective does not score
        sentences.
    """
    measured = measure(directory, split, data_dir and as_path(data_dir), examples, step, as_paths(files), stride,
                       length, pairs and as_path(pairs), pll, batch_size, model, search, source, end_mark, pointer,
                       ensemble, suite and as_path(suite), predictions and as_path(predictions))
    measured.store()
    return measured.values


class Measured(NamedTuple):
    """The result of an evaluation, not yet written."""

    values: dict[str, Any]  # the metrics
    intervals: dict[str, list[float]]  # {metric of a task: [low, high]}, its bootstrap 95 % interval
    store: Callable[[], None]  # writes the files of `evaluate`; raises RunFault if that fails


def measure(
    directory: str | os.PathLike, split: str | None = None, data_dir: str | os.PathLike | None = None,
    examples: int | None = None, step: int | None = None, files: str = "", stride: int | None = None,
    length: int | None = None, pairs: str | os.PathLike = "", pll: str = "", batch_size: int | None = None,
    model: Mapping[str, Any] = MappingProxyType({}), search: Mapping[str, Any] = MappingProxyType({}),
    source: str = "", end_mark: bool = False, pointer: Mapping[str, Any] = MappingProxyType({}), ensemble: str = "",
    suite: str | os.PathLike = "", predictions: str | os.PathLike = "",
) -> Measured:
    """Evaluates like `evaluate`, but writes nothing, so that metrics can be shown even if they cannot be written."""
    for name, value, least in (("examples", examples, 1), ("batch_size", batch_size, 1), ("length", length, 2)):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}; expected at least {least}")
    if files and split:
        raise UserError(f"both files and a split ({split!r}) are given: a split is one of the run's own corpus; leave "
                        "one out")
    options = {"pairs": pairs, "suite": suite, "stride": stride, "files": files, "split": split, "length": length,
               "batch_size": batch_size, "source": source, "search": search, "ensemble": ensemble, "pointer": pointer,
               "pll": pll, "end_mark": end_mark or None, "predictions": predictions}
    given = {name: value for name, value in options.items() if value not in (None, "", {})}
    what = next((name for name in TAKES if name in given), "")
    if surplus := [name for name in given if name != what and name not in TAKES[what]]:
        users = " or ".join(other for other, names in TAKES.items() if surplus[0] in names)
        raise UserError(f"{surplus[0]} is {given[surplus[0]]}, " + (
            f"and {what} is {given[what]}, which does not use it; leave one out" if what else
            f"which is used with {users} alone; give {users} too, or leave it out"))
    if pairs:
        return _minimal_pairs(directory, step, pairs, pll, end_mark, examples, model)
    if suite:
        return _suite(directory, step, suite, pll, examples, model, predictions)
    run = load(directory, step, model, {"search": search} if search else {}, ensemble)
    split, data_dir = split or run.experiment.evaluated_split, Path(data_dir or default_data_dir())
    subject = {"files": files} if files else {"split": split}
    subject |= {name: value for name, value in {"source": source, "ensemble": ensemble}.items() if value}
    try:
        if stride is not None:
            length = _window(run, length, stride)
            result = _sliding(run, split, data_dir, examples, files, length, stride)
            settings, records = {"stride": stride, "length": length}, ()
        else:
            result, settings, records = _result(run, split, data_dir, examples, files, source, length, batch_size,
                                                pointer and read(Pointer, pointer, "pointer"))
    except NoTargets as error:
        raise UserError(str(error)) from error
    except ConfigError as error:  # the run's config is fixed
        raise UserError(f"{error.problem}; correct or convert the text, or give other files") from error
    bounds = evaluate_task.intervals(result)

    def store() -> None:
        if result.predictions:
            name = [source, evaluate_task.name_of(files) if files else split, "ensemble" * bool(ensemble)]
            evaluate_task.write(run, "-".join(filter(None, name)), records, result)
        _record(directory, run, subject, settings | {**model, **search}, result.metrics,
                {"intervals": bounds} if result.predictions else {})

    return Measured(result.metrics, bounds, store)


class Split(NamedTuple):
    """A split of a run's data, or other files, as a stage reads them."""

    name: str  # of the split, or the files
    vocabulary: Vocabulary  # of the run; that of a corpus has counts, which objectives may draw by
    records: Sequence[Record]  # the labelled examples; () for text
    examples: Dataset
    limit: int  # the number of `examples` that are evaluated, from the first on

    @property
    def number(self) -> int:
        """The number of labelled examples, or else of those that are made of the text."""
        return len(self.records) or self.limit

    def batches(self, indices: np.ndarray, batch_size: int) -> Iterator[dict[str, Any]]:
        """Yields the examples of batches at `indices`."""
        return loader.evaluation_batches(self.examples, batch_size=batch_size, indices=indices, limit=self.limit)


def read_split(
    run: Run, stage: ResolvedStage, split: str, data_dir: Path, files: str = "", examples: int | None = None,
    source: str = "",
) -> Split:
    """Reads what a run is evaluated on, as `build.prepare_split` does, for a stage of it."""
    data = build.prepare_split(run.directory, run.experiment, run.model, run.tokenizer, split, data_dir, files,
                               examples, source)
    name = files or split
    dataset, records = build.examples(data, stage, name, data_dir, run.frozen, once=True), data.records.get(name)
    limit = dataset.evaluation_examples if records else min(examples or sys.maxsize, dataset.evaluation_examples)
    return Split(name, data.tokenizer.vocabulary, records or (), dataset, limit)


def evaluator(run: Run, objective: Objective, stage: ResolvedStage, split: Split) -> Callable[[Tree], Result]:
    """Returns a function of an objective's parameters that computes its metrics on a split, on all devices, and the
    predictions for labelled examples. It compiles once."""
    shared = run.params.get(SHARED)
    if split.records:
        return lambda params: evaluate_task.predict_records(
            dataclasses.replace(run, objective=objective, params=with_shared(params, shared)), split.records,
            split.name, split.examples)
    # The mesh of training may not fit these devices.
    mesh = make_mesh(data=math.gcd(stage.batch_size // stage.microbatches, jax.device_count()))
    seed, layout = run.experiment.evaluation.seed, shardings(specs_of(objective), mesh)
    compiled = Evaluator(objective, mesh, stage.batch_size, seed, stage.microbatches)
    return lambda params: Result(compiled(
        jax.device_put(params, layout), split.batches(compiled.indices, stage.batch_size), shared), [])


def _result(
    run: Run, split: str, data_dir: Path, examples: int | None, files: str, source: str, length: int | None,
    batch_size: int | None, pointer: Pointer | None,
) -> tuple[Result, dict[str, Any], Sequence[Record]]:
    """Evaluates the objective of a run. Returns (metrics, and predictions for labelled examples; the settings that they
    depend on; the labelled examples)."""
    stage, chosen = stage_at(run.experiment, run.step), {"length": length, "batch_size": batch_size}
    if length and 0 < run.model.max_length < length:
        raise UserError(f"length is {length:,}; the model takes {run.model.max_length:,} tokens at most")
    stage = dataclasses.replace(stage, length=length or stage.length)
    if batch_size:
        stage = dataclasses.replace(stage, batch_size=batch_size, microbatches=1)
    if files:
        objective_params(run, run.objective)  # refused before the text is prepared, which may take long
    held_out = read_split(run, stage, split, data_dir, files, examples, source)
    for name, value in chosen.items() if held_out.records else ():
        if value:
            raise UserError(f"{name} is {value}, and {run.directory} was trained for a task, not to predict text; "
                            "leave it out")
    # Predictions need no teacher.
    parts, left_out = (run.frozen, "") if held_out.records else with_teachers(run)
    objective = build.objective(stage, run.model, held_out.vocabulary, parts)
    params = run.params | unflatten(build.frozen_values(objective, parts))
    params = objective_params(dataclasses.replace(run, params=params), objective)
    if pointer:
        objective = with_pointer(objective, run.model, stage, pointer)
    settings = {"examples": held_out.number, **chosen, "without": left_out}
    settings |= {f"pointer_{name}": value for name, value in (vars(pointer) if pointer else {}).items()}
    result = evaluator(run, objective, stage, held_out)(params)
    return result, {name: value for name, value in settings.items() if value not in ("", None)}, held_out.records


def _sliding(
    run: Run, split: str, data_dir: Path, examples: int | None, files: str, length: int, stride: int
) -> Result:
    """Returns the sliding-window perplexity of raw documents."""
    configs = [source.data for source in run.experiment.data_sets()]
    if files:
        configs, split = [build.other_corpus(run.experiment.data, files, "file")], "train"
    else:  # checked
        build.prepare_split(run.directory, run.experiment, run.model, run.tokenizer, split, data_dir)
    opened = [documents(config, split, log.info) for config in configs]  # all sources together
    texts = islice(chain.from_iterable(texts for _, texts in opened), examples)
    characters = 0 if examples else sum(number for number, _ in opened)
    return Result(perplexity(run, texts, length, stride, characters).figures, [])


def _minimal_pairs(
    directory: str | os.PathLike, step: int | None, path: str | os.PathLike, pll: str, end_mark: bool,
    examples: int | None, model: Mapping[str, Any],
) -> Measured:
    """Evaluates a checkpoint on minimal pairs."""
    chosen = minimal_pairs.read(path, examples)
    run = load(directory, step, model)
    values = minimal_pairs.evaluate(run, chosen, pll, end_mark)
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    further = {name: values[name] for name in ("summary", "phenomena", "paradigms")}
    return Measured(values, {}, lambda: _record(
        directory, run, {"pairs": os.fspath(path), "score": values["score"]}, {"examples": values["pairs"], **model},
        numbers, further))


def _suite(
    directory: str | os.PathLike, step: int | None, path: str | os.PathLike, pll: str, examples: int | None,
    model: Mapping[str, Any], predictions: str | os.PathLike,
) -> Measured:
    """Evaluates a checkpoint on a suite of zero-shot tasks."""
    words = reading_times.read(path)
    choices = suites.read(path, examples, words)
    run = load(directory, step, model)
    values = suites.evaluate(run, choices, pll, words)
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    predicted = values.pop("predictions")
    items = {task: entry["items"] for task, entry in values["tasks"].items()}
    number = sum(items[task] for task in items.keys() - {table.task for table in words}) or sum(items.values())

    def store() -> None:
        if predictions:
            suites.write_predictions(predicted, Path(predictions))
        _record(directory, run, {"suite": os.fspath(path), "score": values["score"]}, {
            "examples": number, **model}, numbers, {name: values[name] for name in ("summary", "tasks", "unscored")})

    return Measured(values, {}, store)


def _record(
    directory: str | os.PathLike, run: Run, subject: dict[str, str], settings: dict[str, int],
    values: dict[str, float], further: dict[str, Any],
) -> None:
    """Writes metrics to eval.json and eval.jsonl of the workdir `directory`, which may be remote. `subject` says what
    was evaluated."""
    result = {"step": run.step, **subject, **settings, "metrics": evaluate_task.finite_or_text(values),
              **further}
    newest, history = run.directory / "eval.json", run.directory / "eval.jsonl"
    write_json(newest, result)
    if url := remote.as_url(directory):
        remote_workdir.merge_lines(url, history)
    append(history, result)
    log.info("%s at step %s, %s: %s", run.directory.name, f"{run.step:,}",
             " ".join(["split"] * ("split" in subject) + [*subject.values()]),
             ", ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
                       for name, value in settings.items()))
    if url:
        remote_workdir.upload(url, newest)
        remote_workdir.upload(url, history)


def _window(run: Run, length: int | None, stride: int) -> int:
    """Returns the tokens in a window. Raises UserError if the run cannot predict windows of that length and stride."""
    if run.objective.uses.next_token is None or run.conditions_on != Context.LEFT:
        raise UserError(f"{run.directory} was trained with objective {run.objective.name!r}, and sliding-window "
                        "perplexity needs a run that predicts from left to right; evaluate it without a stride, or "
                        "train one with objective=causal")
    most = run.model.max_length
    if length is None:
        stages = experiments.resolve_stages(run.experiment)
        last = stages.index(stage_at(run.experiment, run.step))
        length = most if most and run.converted else max(stage.length for stage in stages[: last + 1])
    if length < 2 or (most and length > most):
        raise UserError(f"length is {length:,}; expected at least 2" + f", and {most:,} at most, which the model takes"
                        * bool(most))
    windows(0, length, stride)
    log.info("windows of %s tokens, %s apart", f"{length:,}", f"{stride:,}")
    return length
