"""Edge probes: how much of the labels of spans, and of pairs of spans, can be read from each layer, and from a learned
weighted sum of all layers (Tenney et al., 2019).

The classifiers are in `lmrep.analysis.span_classifier`. Beside the task, they are trained on a control task (Hewitt and
Liang, 2019): the words of the first span choose the labels, which are those of a random target of the training data.
What a classifier reaches there, it has memorized by words; selectivity is the difference. Unlike micro-averaged F1, the
description length also counts how many targets a classifier needs (Voita and Titov, 2020).
"""

import dataclasses
import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lmrep.analysis import span_classifier, structural_probe
from lmrep.analysis.layer_vectors import normalization, vectors
from lmrep.analysis.probe_base import Columns, ProbeDef, Splits
from lmrep.analysis.span_classifier import Targets
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.core.params import Tree
from lmrep.core.progress import ProgressReporter
from lmrep.data import records as labelled_data
from lmrep.data import tokenizers
from lmrep.data.records import Record, files, json_lines, values
from lmrep.data.records.examples import Examples
from lmrep.data.records.values import short
from lmrep.experiment import config as experiments
from lmrep.experiment import data_sets, task_data
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.inference.evaluate_task import finite_or_text, intervals
from lmrep.metrics import Metric, multilabel
from lmrep.models.base import Model
from lmrep.tasks import schemes
from lmrep.tasks.base import Result, figures

SPLITS = ("train", "validation")
MIX = "mix"  # the layer of the learned sum
BEST = "micro_f1"
SHOWN = {
    BEST: Metric("Micro-F1", "F1", True, ".2%"), "control_f1": Metric("control task", "F1", False, ".2%"),
    "selectivity": Metric("selectivity", "F1", True, ".2%"),
    "code_length": Metric("MDL, kbit", "kbit", False, ".2f"),
    "compression": Metric("compression", "ratio", True, ".2f"),
    "control_code_length": Metric("control MDL, kbit", "kbit", False, ".2f"),
    "control_compression": Metric("control compression", "ratio", False, ".2f")}

log = logging.getLogger(__name__)


class Edge(NamedTuple):
    """The labels of one or two spans of words, as `targets` of a record have them."""

    labels: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # the first word, from 0, and the one after the last


# Reading


def prepare(experiment: Experiment, kind: str, mdl: bool = False) -> Data:
    """Reads and tokenizes the sentences of an experiment of tagging that have targets, by `kind`, a name in `KINDS`.
    Their records have `words` and `targets`, a list of `Edge`.

    Raises:
      UserError: the files cannot be read as `kind` says; some targets have one span, others two; or, with `mdl`, a
        target has not one label.
    """
    records = {}
    for split, sentences in KINDS[kind](experiment).items():
        limit = experiment.evaluation.examples if split == "validation" else None
        records[split] = labelled_data.spread([record for record in sentences if record.fields["targets"]], limit)
        if not records[split]:
            raise UserError(f"{getattr(experiment.data, split)} has no targets for --edges={kind}; expected some in "
                            f"config.data.{split}")
    edges = [(record, edge) for split in SPLITS for record in records[split] for edge in record.fields["targets"]]
    for record, edge in edges:
        if len(edge.spans) != len(edges[0][1].spans):
            raise UserError(f"{record.where} has a target with {len(edge.spans)} spans, and {edges[0][0].where} one "
                            f"with {len(edges[0][1].spans)}; expected as many in all targets")
        if mdl and len(edge.labels) != 1:
            raise UserError(f"{record.where} has a target with the labels {short([*edge.labels])}, and --mdl measures "
                            "the code of one label a target; leave --mdl out")
    experiment = dataclasses.replace(experiment, objective=experiment.objective | {"labels": (), "scheme": "none"})
    tokenizer = tokenizers.from_vocab_file(experiment.tokenizer)
    model = experiments.build_model(experiment, tokenizer.size)
    examples = {split: task_data.tokenize_records(experiment, model, tokenizer, records[split], split)
                for split in SPLITS}
    return Data(experiment, tokenizer, examples, records)


def _tags(experiment: Experiment) -> dict[str, list[Record]]:
    """Reads tags: of every word, or of the entities that they mark."""
    records = {split: data_sets.read_split(experiment, split) for split in SPLITS}
    scheme = experiment.objective["scheme"]
    scheme = schemes.detect(records["train"]) if scheme == "auto" else scheme

    def edges(tags: Sequence[str]) -> list[Edge]:
        if scheme == "none":
            return [Edge((tag,), ((i, i + 1),)) for i, tag in enumerate(tags)]
        return [Edge((name,), ((start, end),)) for name, start, end in schemes.entities(tags)]

    return {split: [_with_targets(record, edges(record.fields["tags"])) for record in sentences]
            for split, sentences in records.items()}


def _arcs(experiment: Experiment) -> dict[str, list[Record]]:
    """Reads dependencies: the dependent and its head, which of the root is the root itself, as in the published
    data."""
    records = {}
    for split in SPLITS:
        heads, relations = (data_sets.read_split(structural_probe.with_column(experiment, column), split)
                            for column in ("head", "deprel"))
        records[split] = [_with_targets(record, [
            Edge((relation,), ((i, i + 1), (head - 1, head) if head else (i, i + 1)))
            for i, (head, relation) in enumerate(zip(structural_probe.heads_of(record), other.fields["tags"],
                                                     strict=True))])
            for record, other in zip(heads, relations, strict=True)]
    return records


def _targets(experiment: Experiment) -> dict[str, list[Record]]:
    """Reads JSON Lines of the published form."""
    return {split: [parse(line, where) for path in files.find(getattr(experiment.data, split), split)
                    for where, line in files.filled_lines(path, experiment.data)] for split in SPLITS}


KINDS: Mapping[str, Callable[[Experiment], dict[str, list[Record]]]] = {
    "tags": _tags, "arcs": _arcs, "targets": _targets}
NAMES = {kind: f"edges_{kind}" for kind in KINDS}  # in results, where others have a task


def _with_targets(record: Record, edges: list[Edge]) -> Record:
    return record._replace(fields={"words": record.fields["words"], "targets": edges})


def parse(line: str, where: str) -> Record:
    """Parses {"text": words between white space, "targets": [{"span1": [first word, word after the last], "span2": the
    same or absent, "label": one or a list of them}]}. Raises UserError for anything else."""
    value = json_lines.parse(line, where)
    if isinstance(value, UserError):
        raise value
    text, targets = (value.get(name) if isinstance(value, dict) else None for name in ("text", "targets"))
    if not isinstance(text, str) or not isinstance(targets, list) or not text.split():
        raise UserError(f"{where} is {short(value)}; expected an object with a text and a list of targets")
    words, edges = text.split(), []
    if error := values.check(Record({"words": words}, "", where), "train"):
        raise error
    for target in targets:
        target = target if isinstance(target, dict) else {}
        spans = [target.get("span1"), *([target["span2"]] if "span2" in target else [])]
        labels = target.get("label")
        labels = labels if isinstance(labels, list) else [labels]
        if not all(isinstance(span, list) and [*map(type, span)] == [int, int] and 0 <= span[0] < span[1] <= len(words)
                   for span in spans) or not all(isinstance(label, str | int) for label in labels):
            raise UserError(f"{where} has the target {short(target)}; expected span1 and perhaps span2, [first word "
                            f"from 0, word after the last] of {len(words)} words, and as label a string or a list of "
                            "them")
        edges.append(Edge((*dict.fromkeys(map(str, labels)),), (*map(tuple, spans),)))
    return Record({"words": words, "targets": edges}, "", where)


# Measuring


class Split(NamedTuple):
    """The targets of a split."""

    x: np.ndarray  # float32 [k, m, d], the vectors of all tokens of words
    spans: np.ndarray  # int64 [n, s, 2], as in `Targets`
    gold: list[tuple[str, ...]]  # the labels of each target
    words: list[str]  # the words of the first span of each target
    sentence: list[int]  # the sentence of each target


def encode(params: Tree, model: Model, c: Any, records: Sequence[Record], examples: Examples) -> Split:
    """Computes the vectors of records of `prepare` in all layers."""
    tokens = vectors(params, model, c, examples, every_token=True)
    first = np.cumsum([0, *(len(record.fields["words"]) for record in records)])
    word = first[examples.units.example[tokens.unit]] + tokens.y  # numbered over all sentences
    order = np.lexsort((tokens.position, word))
    begins = np.searchsorted(word[order], np.arange(first[-1] + 1))  # the first token of each word
    edges = [(i, edge) for i, record in enumerate(records) for edge in record.fields["targets"]]
    spans = np.array([edge.spans for _, edge in edges]) + first[[i for i, _ in edges]][:, None, None]
    return Split(tokens.x[:, order], begins[spans], [edge.labels for _, edge in edges],
                 [" ".join(records[i].fields["words"][slice(*edge.spans[0])]) for i, edge in edges],
                 [i for i, _ in edges])


def measure(
    experiment: Experiment, model: Model, params: Tree, splits: Splits, mdl: bool = False
) -> list[dict[str, Any]]:
    """Trains classifiers on each layer, the embeddings first, and on the learned sum of all, with `splits` and
    `experiment` of `prepare`. Returns for each its `metrics`, those of `SHOWN` and of `sizes`, and `intervals`
    (bootstrap 95 %). Raises UserError if the training data has a single label."""
    c = experiments.resolve_stages(experiment)[0].objective
    train, held_out = (encode(params, model, c, *splits[split]) for split in SPLITS)
    names, seed = sorted({label for labels in train.gold for label in labels}), experiment.seed
    if len(names) < 2:
        raise UserError(f"the training targets have the labels {short(names)}; expected two or more")
    gold = {"": (train.gold, held_out.gold),
            "control_": tuple(control(split.words, train.gold, seed) for split in (train, held_out))}
    tasks = {task: (*(one_hot(labels, names) for labels in both), both[1]) for task, both in gold.items()}
    mean, scale = normalization(train.x)
    layers, normalized = [*range(len(mean)), MIX], [(split.x - mean) * scale for split in (train, held_out)]
    done, total = 0, len(layers) * len(tasks) * (len(span_classifier.portions(len(train.gold))) if mdl else 1)
    log.info("training %s classifiers of %s labels, on %s targets and layers of width %d (%s)", f"{total:,}",
             f"{len(names):,}", f"{len(train.gold):,}", mean.shape[-1], byte_size(sum(x.nbytes for x in normalized)))
    reporter = ProgressReporter(log.info, total, every=10)

    def trained() -> None:
        nonlocal done
        done += 1
        reporter.report(done, lambda seconds: f"trained {done:,} of {total:,} classifiers")

    results = []
    for layer in layers:
        x, held_out_x = (jnp.asarray(x if layer == MIX else x[layer : layer + 1]) for x in normalized)
        metrics, bounds = sizes(train, held_out, names), {}
        for task, (labels, held_out_labels, held_out_gold) in tasks.items():
            data = Targets(x, train.spans, labels)
            other = Targets(held_out_x, held_out.spans, held_out_labels)
            fitted = span_classifier.fit(data, np.arange(len(labels)), seed)
            result = score(fitted, other, held_out_gold, held_out.sentence, names)
            trained()
            name = "control_f1" if task else BEST
            metrics[name], bounds[name] = result.metrics[BEST], intervals(result)[BEST]
            if mdl:
                metrics[f"{task}code_length"] = span_classifier.code_length(data, other, seed, trained) / 1000
                metrics[f"{task}compression"] = metrics["uniform_code_length"] / metrics[f"{task}code_length"]
        metrics["selectivity"] = metrics[BEST] - metrics["control_f1"]
        results.append({"layer": layer, "metrics": finite_or_text(metrics), "intervals": bounds})
    return results


def sizes(train: Split, held_out: Split, names: Sequence[str]) -> dict[str, float]:
    """Returns the numbers of `train_targets`, `validation_targets` and `labels`, the F1 of the best constant labels,
    `constant_micro_f1`, and the `uniform_code_length` of the training targets in kbit, log2(labels) bits each."""
    return {"train_targets": len(train.gold), "validation_targets": len(held_out.gold), "labels": len(names),
            "constant_micro_f1": multilabel.constant_micro_f1(held_out.gold),
            "uniform_code_length": len(train.gold) * math.log2(len(names)) / 1000}


def control(words: Sequence[str], labels: Sequence[tuple[str, ...]], seed: int) -> list[tuple[str, ...]]:
    """Returns the labels of the control task for targets with these words: those of a target drawn from the training
    data, `labels`, by the seed and the words alone."""
    drawn = {text: labels[np.random.default_rng([seed, zlib.crc32(text.encode())]).integers(len(labels))]
             for text in {*words}}
    return [drawn[text] for text in words]


def one_hot(labels: Sequence[tuple[str, ...]], names: Sequence[str]) -> np.ndarray:
    """Returns bool [n, c], whether each target has each of the labels `names`."""
    return np.array([[name in target for name in names] for target in labels])


def score(
    params: Tree, data: Targets, gold: Sequence[tuple[str, ...]], sentence: Sequence[int], names: Sequence[str]
) -> Result:
    """Predicts the labels of probability above 1/2 of each target, and measures micro-averaged F1; bootstrap samples
    are of sentences."""
    y = span_classifier.predict(params, data, np.arange(len(gold)))
    true, predicted = ([[] for _ in range(max(sentence) + 1)] for _ in range(2))
    for i, labels in enumerate(gold):
        true[sentence[i]] += [(i, label) for label in labels]
    for i, label in np.argwhere(y > 0).tolist():
        predicted[sentence[i]].append((i, names[label]))
    return Result(figures([BEST], true, predicted), [], true, predicted)


# Tables


def shown(result: Mapping[str, Any]) -> Columns:
    """Returns the metrics of `SHOWN` that layers of a result have: description lengths are not always measured."""
    return {name: metric for name, metric in SHOWN.items()
            if name == BEST or any(name in layer["metrics"] for layer in result["layers"])}


def table(result: Mapping[str, Any], columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Returns (headings, rows of cells) with a row for each layer, and then, where they were measured, for each layer
    of an untrained network."""
    rows = []
    for network, layers in (("", result["layers"]), ("untrained ", result.get("untrained", ()))):
        for number, layer in enumerate(layers):
            cells = [format(float(layer["metrics"][name]), metric.format) for name, metric in columns.items()]
            ends = [format(float(end), SHOWN[BEST].format) for end in layer["intervals"].get(BEST) or ()]
            cells[0] += f" ({' to '.join(ends)})" if ends else ""
            rows.append([f"{network}{layer.get('layer', number)}{'' if number else ' (embeddings)'}", *cells])
    return ["layer", *(metric.title for metric in columns.values())], rows


def describe(result: Mapping[str, Any], network: str) -> str:
    """Describes in a sentence what was measured, and on what."""
    metrics = result["layers"][0]["metrics"]
    text = (f"Edge probes on the layers of {network}: {metrics['train_targets']:,} training and "
            f"{metrics['validation_targets']:,} validation targets with {metrics['labels']:,} labels; always the most "
            f"frequent label: {float(metrics['constant_micro_f1']):.2%}")
    if "code_length" in metrics:
        text += f"; the uniform code takes {float(metrics['uniform_code_length']):,.2f} kbit"
    return text


DEFINITIONS = {name: ProbeDef("edge probes", partial(prepare, kind=kind), measure, shown, describe, BEST, table=table)
               for kind, name in NAMES.items()}
