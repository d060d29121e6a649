"""Multi-label classification: any number of labels for each text or pair of texts, each decided by itself."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.formats.base import Field
from lmrep.data.records import Record, values
from lmrep.data.records.encoding import Units
from lmrep.metrics import Metric, accuracy_metric, multilabel
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.objectives.base import Batch, Carry, Metrics
from lmrep.tasks import networks, unseen
from lmrep.tasks.base import Comparison, Outputs, Reads, Result, TaskDef, TextEncoder, figures, mean_by_example
from lmrep.tasks.capability import Predict
from lmrep.tasks.classification import label_order
from lmrep.tasks.networks import Network

METRICS = ("micro_f1", "macro_label_f1", "subset_accuracy")


@dataclass(frozen=True)
class Config(networks.TextConfig):
    """A binary classifier for each label, on one vector of each text."""

    labels: tuple[str, ...] = setting((), "the labels, in the order of the head's outputs; none: as in the training "
                                      "data, sorted")
    threshold: float = setting(0.5, "the probability above which a text has a label", above=0, below=1)


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """Sets `labels` to those of the training data, sorted. Raises UserError if they do not fit the config."""
    unseen.report(c.labels, records, _describe, _labels, training=True)
    labels = c.labels or tuple(sorted({label for record in records for label in _labels(record)}, key=label_order))
    if not labels:
        raise UserError(f"no text of the training data has a label ({records[0].where} and further ones); expected "
                        "texts with one or more labels")
    return replace(c, labels=labels)


def _labels(record: Record) -> Sequence[str]:
    return record.fields.get("labels", ())


def _describe(record: Record, i: int) -> str:
    return f"{record.where}: one of the labels is {values.short(record.fields['labels'][i])}"


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each text or pair, several of a text that is read in windows."""
    unseen.report(c.labels, records, _describe, _labels)
    labels = np.array([[label in record.fields["labels"] if "labels" in record.fields else -1 for label in c.labels]
                       for record in records], np.int32)
    return encoder.units(records, {"labels": labels})


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean binary cross-entropy over labels, then over texts."""
    y, carry = networks.outputs(params, batch, net, key, carry)
    nll = optax.sigmoid_binary_cross_entropy(y, jnp.maximum(batch["labels"], 0)).mean(-1)
    return (nll * batch["weights"]).sum(), ({}, carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes `logits` float32 [b, n, labels]."""
    return {"units": {"logits": networks.outputs(params, batch, net)[0]}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts the labels of each text whose probability, by the mean logit over windows, is above the threshold."""
    y = mean_by_example(np.stack(outputs["logits"]).astype(np.float64), units.example, len(records))
    probabilities = np.exp(-np.logaddexp(0, -y))
    chosen = [[c.labels[i] for i in np.flatnonzero(row > c.threshold)] for row in probabilities]
    predictions: list[dict[str, Any]] = [
        {"labels": labels, "probabilities": dict(zip(c.labels, row.tolist(), strict=True))}
        for labels, row in zip(chosen, probabilities, strict=True)]
    if any("labels" not in record.fields for record in records):
        return Result({}, predictions)
    gold = [list(record.fields["labels"]) for record in records]
    true = np.array([[label in labels for label in c.labels] for labels in gold])
    metrics = {"loss": float(np.logaddexp(0, np.where(true, -y, y)).mean()),
               "constant_micro_f1": multilabel.constant_micro_f1(gold),
               "constant_subset_accuracy": multilabel.constant_subset_accuracy(gold),
               **figures(METRICS, gold, chosen)}
    return Result(metrics, predictions, gold, chosen)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Writes a line for each text: its id, a tab, and its labels between commas."""
    return {"predictions.tsv": "".join(
        f"{record.id}\t{','.join(prediction['labels'])}\n"
        for record, prediction in zip(records, result.predictions, strict=True))}


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares two sets of labels, by the negative logarithm of the probability of the right one."""
    right = {*record.fields["labels"]}
    loss = -sum(np.log(max(p if label in right else 1 - p, sys.float_info.min))
                for label, p in prediction["probabilities"].items())
    return Comparison(shown(record.fields["labels"]), shown(prediction["labels"]), float(loss))


def shown(labels: Sequence[str]) -> str:
    """Shows labels for people."""
    return ", ".join(labels) or "no label"


DEFINITION = TaskDef(
    networks.definition(Config, networks.builder(
        "multilabel", lambda c: len(c.labels) or 1, lambda batch: (batch["labels"] >= 0).all(-1), loss, predict), {
        **{name: TASK_METRICS[name].metric for name in METRICS},
        "micro_f1": TASK_METRICS["micro_f1"].metric._replace(headline=True, baseline="constant_micro_f1"),
        "subset_accuracy": accuracy_metric("Texts with all labels right", baseline="constant_subset_accuracy"),
        "constant_micro_f1": Metric("Micro-averaged F1 of the best constant labels", "F1", True, ".2%"),
        "constant_subset_accuracy": accuracy_metric("Accuracy of the most frequent labels", headline=False),
    }, (Predict("classify", "names the labels of texts", ("text",), lambda prediction: shown(prediction["labels"]),
                ("text2",)),)),
    Reads(("text",), ("labels",), ("text2",)), resolve=resolve, encode=encode, score=score, best="micro_f1",
    columns=lambda c: {"labels": Field("bnl", np.int32, "1 for labels that a text has, 0 for others; -1 where they are "
                                                        "not known")},
    submission=submission, compare=compare, initial={"objective/multilabel/dense": "objective/pair/pooler"},
)
