"""Classification of texts and of pairs of texts (Devlin et al., 2019, section 4.1)."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.text_files import parse_number
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import Field
from lmrep.data.records import Record, values
from lmrep.data.records.encoding import Units
from lmrep.metrics import accuracy_metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenParts, Keys, Metrics, Objective
from lmrep.tasks import adversarial, linear_gain, networks, unseen
from lmrep.tasks.adversarial import Config as Adversarial
from lmrep.tasks.base import Outputs, Reads, Result, TaskDef, TextEncoder, figures, glue_submission, mean_by_example
from lmrep.tasks.bcn import Config as Bcn
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network

METRICS = ("accuracy", "f1", "macro_f1", "matthews")
MEASURED = {
    **{name: TASK_METRICS[name].metric for name in METRICS},
    "accuracy": accuracy_metric("Accuracy", baseline="majority_accuracy"),
    "majority_accuracy": accuracy_metric("Accuracy of the most frequent class", headline=False), **adversarial.METRICS}
Logits = Callable[..., tuple[Array, Carry | None]]  # as `networks.outputs`
WRITTEN = 10  # the most probable classes that a prediction has, beside the right one


@dataclass(frozen=True)
class Classes:
    """The classes, and the metrics that are measured."""

    labels: tuple[str, ...] = setting((), "the classes, in the order of the head's outputs; none: as in the "
                                      "training data, sorted")
    metrics: tuple[str, ...] = setting(("accuracy",), "what is measured on validation data, beside accuracy",
                                       choices=METRICS)
    positive: str = setting("", "f1: the positive class; empty: the second of two")
    balanced: bool = setting(False, "weights each class's loss by the inverse of its frequency in the training data: "
                             "n / (classes * n of the class), as scikit-learn's balanced; sets class_weights")
    class_weights: tuple[float, ...] = setting((), "the factor of the loss of each class's examples, in the order of "
                                               "labels; none: 1", above=0)


@dataclass(frozen=True)
class Config(Classes, networks.TextConfig):
    """A classifier."""

    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers; ulmfit: the blocks of ULMFiT's classifier; bcn: the biattentive classification "
                           "network of CoVe, which compares the texts of a pair, or a text with itself",
                           choices=("linear", "bilstm", *networks.TEXT_NETWORKS))
    bcn: Bcn = setting(Bcn(), "the biattentive classification network")
    linear_gain: bool = setting(False, "context left: in training, every position predicts the label, position i of n "
                                "with the weight i / (n - 1) (Dai and Le, 2015); otherwise the last one alone")
    adversarial: Adversarial = setting(Adversarial(), "losses of texts with changed vectors, of networks that "
                                       "allow it (lstm, awd_lstm)")


def check(c: Config) -> None:
    """Raises UserError where the label cannot be predicted at every position."""
    if adversarial.is_used(c.adversarial) and c.chunks.size:
        raise UserError(f"config.objective.adversarial changes the vectors of tokens, and config.objective.chunks.size "
                        f"is {c.chunks.size}; set one of the two to its default")
    if adversarial.is_used(c.adversarial) and c.network in networks.TEXT_NETWORKS:
        raise UserError(f"config.objective.adversarial changes vectors, and config.objective.network is {c.network}, "
                        "whose statistics are those of texts as they are; choose another network, or set the weights "
                        "to 0")
    needed = {"context": "left", "pooling": "position", "network": "linear"}
    wrong = [name for name, value in needed.items() if getattr(c, name) != value]
    if c.linear_gain and wrong:
        raise UserError(f"config.objective.linear_gain predicts the label at every position, from the left, and "
                        f"config.objective.{wrong[0]} is {getattr(c, wrong[0])}; set it to {needed[wrong[0]]}, or "
                        "linear_gain to False")


def resolve(c: Classes, records: Sequence[Record]) -> Config:
    """Sets `labels` to those of the training data, sorted. Raises UserError if they do not fit the config."""
    unseen.report(c.labels, records, _describe, _labels, training=True)
    labels = c.labels or tuple(sorted({record.fields["label"] for record in records}, key=label_order))
    if len(labels) < 2:
        raise UserError(f"the training data has the only label {values.short(labels[0])} ({records[0].where}); "
                        "expected two or more classes")
    if "f1" in c.metrics and (c.positive not in labels if c.positive else len(labels) > 2):
        raise UserError(f"config.objective.positive is {c.positive!r}, and the labels are {values.listed(labels)}; "
                        "set it to the one that F1 is measured for, or measure macro_f1")
    weights = c.class_weights
    if c.balanced and not weights:
        counts = Counter(record.fields["label"] for record in records)
        missing = [label for label in labels if not counts[label]]
        if missing:
            raise UserError(f"config.objective.balanced weights classes by their frequencies, and the training data "
                            f"has no example of {values.short(missing[0])}; set class_weights instead")
        weights = tuple(counts.total() / (len(labels) * counts[label]) for label in labels)
    if weights and len(weights) != len(labels):
        raise UserError(f"config.objective.class_weights has {len(weights)} values, and there are {len(labels)} "
                        f"labels: {values.listed(labels)}; give one for each, in this order")
    return replace(c, labels=labels, class_weights=weights)


def label_order(label: str) -> tuple:
    """Returns the sort key of a label: numbers come first, by value, then other labels by their characters."""
    value = parse_number(label)
    return (0, value, label) if math.isfinite(value) else (1, 0.0, label)


def _labels(record: Record) -> tuple[str, ...]:
    return (record.fields["label"],) if "label" in record.fields else ()


def _describe(record: Record, i: int) -> str:
    return f"{record.where}: the label is {values.short(record.fields['label'])}"


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each text or pair, several of a text that is read in windows."""
    return encoder.units(records, {"label": class_numbers(c, records)})


def class_numbers(c: Classes, records: Sequence[Record]) -> np.ndarray:
    """Returns the number of each record's class, int32 [n]; -1 if it has none, or one that the training data lacks,
    about which it warns."""
    unseen.report(c.labels, records, _describe, _labels)
    numbers = {label: i for i, label in enumerate(c.labels)}
    return np.array([numbers.get(record.fields.get("label"), -1) for record in records], np.int32)


def known(batch: Batch) -> Array:
    """Tells which units have a label, bool[b, n]."""
    return batch["label"] >= 0


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network, logits: Logits = networks.outputs
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the classes, each example's times the weight of its class."""
    y, carry = logits(params, batch, net, key, carry)
    if net.c.class_weights:
        factors = jnp.asarray(net.c.class_weights, jnp.float32)[jnp.maximum(batch["label"], 0)]
        batch = batch | {"weights": batch["weights"] * factors}
    value, metrics = networks.cross_entropy(params, batch, net, y, batch["label"], ("units", "log_probabilities"))
    changes = getattr(net.c, "adversarial", Adversarial())
    if key is not None and adversarial.is_used(changes):
        more, measured = adversarial.losses(
            changes, net.model, lambda model, key: logits(params, batch, net._replace(model=model), key)[0], y, batch,
            key)
        value, metrics = value + more, metrics | measured
    return value, (metrics, carry)


def predict(
    params: Tree, batch: Batch, *, net: Network, logits: Logits = networks.outputs
) -> dict[str, dict[str, Array]]:
    """Computes `log_probabilities` float32 [b, n, classes]."""
    return {"units": {"log_probabilities": jax.nn.log_softmax(logits(params, batch, net)[0])}}


def score(c: Classes, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts the most probable class of each text, by the mean of its windows' log probabilities. Of more than
    `WRITTEN` classes, a prediction has the probabilities of the most probable ones and of the right one. `loss` is the
    mean cross-entropy of these, without class weights and the terms that only training has."""
    means = mean_by_example(np.stack(outputs["log_probabilities"]), units.example, len(records))
    probabilities = np.exp(means - np.logaddexp.reduce(means, -1, keepdims=True))
    chosen = [c.labels[i] for i in probabilities.argmax(-1)]
    gold = [record.fields.get("label") for record in records]
    numbers, options = {label: i for i, label in enumerate(c.labels)}, {"f1": {"positive": c.positive or c.labels[1]}}
    predictions: list[dict[str, Any]] = [
        {"label": label, "probabilities": {c.labels[i]: float(row[i]) for i in dict.fromkeys(
            range(len(row)) if len(row) <= WRITTEN else
            [*np.argsort(-row, kind="stable")[:WRITTEN].tolist(), numbers.get(right, row.argmax())])}}
        for label, row, right in zip(chosen, probabilities, gold, strict=True)]
    if None in gold:
        return Result({}, predictions)
    rows = [i for i, label in enumerate(gold) if label in numbers]
    true = np.array([numbers[gold[i]] for i in rows], int)
    metrics = {**({"loss": float((np.logaddexp.reduce(means, -1)[rows] - means[rows, true]).mean())} if rows else {}),
               "majority_accuracy": float(np.bincount(true, minlength=1).max() / len(gold)),
               **figures(dict.fromkeys(("accuracy", *c.metrics)), gold, chosen, options)}
    return Result(metrics, predictions, gold, chosen, options)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Makes the file that GLUE's server takes."""
    return glue_submission(records, [prediction["label"] for prediction in result.predictions])


def show(prediction: dict[str, Any]) -> str:
    """Shows the label with its probability."""
    return f"{prediction['label']}\t{prediction['probabilities'][prediction['label']]:.1%}"


_build = networks.builder("classification", lambda c: len(c.labels) or 2, known, loss, predict)


def build(
    c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})
) -> Objective:
    """Builds the objective of a classifier."""
    built = _build(c, model, vocabulary, frozen)
    if adversarial.is_used(c.adversarial):
        inner = built.prepare

        def prepare_unpacked(keys: Keys, batch: Batch) -> Batch:
            if batch["label"].shape[1] > 1:  # the changes of several texts would share one norm
                raise UserError(f"{adversarial.FIELD} changes the vectors of one text, and config.format.packed is "
                                "True; set it to False")
            return inner(keys, batch)

        built = built._replace(prepare=prepare_unpacked)
    return built._replace(prepare=linear_gain.preparing(built.prepare)) if c.linear_gain else built


DEFINITION = TaskDef(
    networks.definition(
        Config, build, MEASURED, (Predict("classify", "classifies texts", ("text",), show, ("text2",)),), check=check,
        teachable=True),
    Reads(("text",), ("label",), ("text2",)), resolve=resolve, encode=encode, score=score, best="accuracy",
    columns=lambda c: {"label": Field("bn", np.int32, "number of the class; -1 where it is not known")},
    submission=submission, initial={"objective/classification/dense": "objective/pair/pooler"},
)
