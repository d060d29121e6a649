"""Evaluates a trained run on text: the metrics of its objective, or its sliding-window perplexity."""

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Mapping
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from lmrep.config.record import read
from lmrep.core import remote
from lmrep.core.errors import ConfigError, UserError
from lmrep.core.files import write_json
from lmrep.core.host import default_data_dir
from lmrep.core.params import unflatten
from lmrep.core.paths import as_path, as_paths
from lmrep.core.sharding import make_mesh, shardings
from lmrep.data import corpora, loader
from lmrep.data.store.prepare import Prepared, prepare_corpus
from lmrep.data.store.scan import documents
from lmrep.experiment import build, checks
from lmrep.experiment import config as experiments
from lmrep.experiment.config import own_tokenizer, stage_at
from lmrep.inference import pairs as minimal_pairs
from lmrep.inference import reading_times
from lmrep.inference import suite as suites
from lmrep.inference.evaluate_task import evaluate_records, finite_or_text
from lmrep.inference.load import load, objective_params, with_teachers
from lmrep.inference.perplexity import perplexity, windows
from lmrep.inference.pointer import Pointer, with_pointer
from lmrep.inference.run import Run
from lmrep.models.base import Context
from lmrep.storage import remote_workdir
from lmrep.storage.jsonl import append
from lmrep.storage.workdir import read_config
from lmrep.training.evaluation import Evaluator, NoTargets
from lmrep.training.state import SHARED, specs_of

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
    if pointer and (stride is not None or pairs or suite):
        raise UserError("a pointer is given, and a stride, pairs or a suite, which do not use one; leave it out")
    if batch_size is not None and (stride is not None or pairs or suite):
        raise UserError(f"batch_size is {batch_size}, and a stride, pairs or a suite are given, whose batches are "
                        "chosen for the machine; leave it out")
    if pairs and suite:
        raise UserError("both pairs and a suite are given; leave one out")
    if (pairs or suite) and (files or split or stride is not None or length is not None):
        raise UserError(f"{'pairs are' if pairs else 'a suite is'} given, and files, a split, a stride or a length "
                        "too; leave these out")
    if (end_mark and not pairs) or (pll and not pairs and not suite):
        name = f"pll is {pll!r}" if pll else "end_mark is set"
        raise UserError(f"{name}, for scores of minimal pairs; give pairs too" + ", or a suite" * bool(pll))
    if pairs:
        return _minimal_pairs(directory, step, pairs, pll, end_mark, examples, model)
    if predictions and not suite:
        raise UserError(f"predictions is {os.fspath(predictions)!r}, a directory for those of a suite; give a suite "
                        "too")
    if suite:
        return _suite(directory, step, suite, pll, examples, model, predictions)
    run = load(directory, step, model, {"search": search} if search else {}, ensemble)
    split = split or run.experiment.evaluated_split
    subject, intervals, further, write = {"files": files} if files else {"split": split}, {}, {}, None
    if run.experiment.labelled:
        for name, value in {"stride": stride, "length": length, "batch_size": batch_size}.items():
            if value is not None:
                raise UserError(f"{name} is {value}, and {run.directory} was trained for a task, not to predict text; "
                                "leave it out")
        number, values, intervals, write = evaluate_records(run, split, files, examples, source)
        subject |= {name: value for name, value in {"source": source, "ensemble": ensemble}.items() if value}
        settings, further = {"examples": number, **search}, {"intervals": intervals}
    elif source:
        raise UserError(f"source is {source!r}, and {run.directory} was not trained on labelled data; leave it out")
    else:
        values, settings = _of_text(run, split, Path(data_dir or default_data_dir()), examples, files, length,
                                    batch_size, stride, pointer and read(Pointer, pointer, "pointer"))
        settings |= model

    def store() -> None:
        if write:
            write()
        _record(directory, run, subject, settings, values, further)

    return Measured(values, intervals, store)


def _of_text(
    run: Run, split: str, data_dir: Path, examples: int | None, files: str, length: int | None,
    batch_size: int | None, stride: int | None, pointer: Pointer | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (metrics on text, the settings that they depend on)."""
    try:
        if stride is not None:
            length, configs = _window(run, length, stride), [source.data for source in run.experiment.data_sets()]
            if files:
                configs, split = [other_corpus(run.experiment.data, files, "file")], "train"
            else:
                own_corpus(run, split, data_dir)
            opened = [documents(config, split, log.info) for config in configs]  # all sources together
            texts = islice(chain.from_iterable(texts for _, texts in opened), examples)
            characters = 0 if examples else sum(number for number, _ in opened)
            return perplexity(run, texts, length, stride, characters).figures, {"stride": stride, "length": length}
        number, values, left_out = _metrics(run, split, data_dir, examples, files, length, batch_size, pointer)
    except NoTargets as error:
        raise UserError(str(error)) from error
    except ConfigError as error:  # the run's config is fixed
        raise UserError(f"{error.problem}; correct or convert the text, or give other files") from error
    return values, {"examples": number} | {name: value for name, value in {
        "length": length, "batch_size": batch_size, "without": left_out}.items() if value} | {
        f"pointer_{name}": value for name, value in (vars(pointer) if pointer else {}).items()}


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
    values: dict[str, float], further: dict[str, Any] | None = None,
) -> None:
    """Writes metrics to eval.json and eval.jsonl of the workdir `directory`, which may be remote. `subject` says what
    was evaluated."""
    result = {"step": run.step, **subject, **settings, "metrics": finite_or_text(values), **(further or {})}
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


def own_corpus(run: Run, split: str, data_dir: Path) -> Prepared:
    """Prepares the corpus that a run was trained on or, of parameters of another training loop, that of their config.

    Raises:
      UserError: the run was converted, the corpus lacks the split, or its files have changed.
    """
    config = read_config(run.directory)
    recorded, saved = config["data"], "saved" in config
    if "train" not in recorded and not saved:
        raise UserError(f"{run.directory} was converted, not trained, and has no corpus of its own; "
                        "give text with --files='texts/*.txt'")
    if not saved:
        checks.check_rules(run.directory, recorded)
    tokenizer = own_tokenizer(run.directory, run.experiment)
    prepared = build.prepare_data(run.experiment, data_dir, log.info, tokenizer).corpus
    if split not in prepared.stores:
        raise UserError(f"there is no split {split!r}; this run's corpus has {', '.join(prepared.stores)}")
    if prepared.stores[split].fingerprint != recorded.get(split) and not saved:
        raise UserError(f"the files of the corpus have changed since {run.directory} was trained; restore them, or "
                        "evaluate other files with --files")
    return prepared


def other_corpus(data: corpora.Config, files: str, documents: str = "") -> corpora.Config:
    """Returns the config of a corpus of other text files, a glob: all in one split, everything else as in `data`."""
    documents = documents or (data.documents if data.corpus == "text_files" else "auto")
    return dataclasses.replace(data, corpus="text_files", files=files, documents=documents, validation=0.0, test=0.0)


def _metrics(
    run: Run, split: str, data_dir: Path, examples: int | None, files: str, length: int | None,
    batch_size: int | None, pointer: Pointer | None,
) -> tuple[int, dict[str, float], str]:
    """Returns (number of examples, metrics, names of the teachers whose terms of the loss are left out)."""
    stage, (parts, left_out) = stage_at(run.experiment, run.step), with_teachers(run)
    if length and 0 < run.model.max_length < length:
        raise UserError(f"length is {length:,}; the model takes {run.model.max_length:,} tokens at most")
    stage = dataclasses.replace(stage, length=length or stage.length)
    if batch_size:
        stage = dataclasses.replace(stage, batch_size=batch_size, microbatches=1)
    if files:
        objective_params(run, run.objective)  # refused before the text is prepared, which may take long
        tokenizer = dataclasses.replace(run.experiment.tokenizer, vocab_file=str(run.directory / "tokenizer"))
        data, split = other_corpus(run.experiment.data, files), "train"
        prepared = prepare_corpus(data, tokenizer, data_dir, log.info)
    else:
        prepared = own_corpus(run, split, data_dir)
    vocabulary = prepared.tokenizer.vocabulary
    network = experiments.build_model(run.experiment, vocabulary.size)
    objective = build.objective(stage, network, vocabulary, parts)
    frozen_params = unflatten(build.frozen_values(objective, parts))
    params = objective_params(dataclasses.replace(run, params=run.params | frozen_params), objective)
    if pointer:
        objective = with_pointer(objective, network, stage, pointer)
    plan = build.plan(stage, prepared.stores[split], run.experiment.evaluation.seed, data_dir, once=True)
    # The mesh of training may not fit these devices.
    mesh = make_mesh(data=math.gcd(stage.batch_size // stage.microbatches, jax.device_count()))
    evaluator = Evaluator(objective, mesh, stage.batch_size, run.experiment.evaluation.seed, stage.microbatches)
    batches = loader.evaluation_batches(plan, batch_size=stage.batch_size, indices=evaluator.indices, limit=examples)
    params = jax.device_put(params, shardings(specs_of(objective), mesh))
    values = evaluator(params, batches, run.params.get(SHARED))
    count = plan.evaluation_examples
    return count if examples is None else min(examples, count), values, left_out


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
