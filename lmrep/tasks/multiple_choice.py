"""Multiple choice: which of several texts continues or answers a text (Devlin et al., 2019, section 4.4: SWAG)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import EncodedUnit, Units
from lmrep.metrics import accuracy_metric
from lmrep.objectives.base import Batch, Carry, Metrics
from lmrep.tasks import networks
from lmrep.tasks.base import Outputs, Reads, Result, TaskDef, TextEncoder, figures
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network

# An empty unit, in place of a choice that an example lacks.
EMPTY = EncodedUnit(np.zeros(0, np.int32), np.zeros(0, np.int8), 0, 0, np.zeros(0, np.int32))
MASKED = -1e30  # the logit of an empty unit


@dataclass(frozen=True)
class Config(networks.TextConfig):
    """A model that chooses one of several texts."""


def check(c: Config, record: Record) -> None:
    """Raises UserError for an example with a single choice. (Readers check that labels are numbers of choices.)"""
    if len(record.fields["choices"]) < 2:
        raise UserError(f"{record.where} has the only choice {record.fields['choices'][0]!r}; expected two or more")


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes k units of each example, k the largest number of choices: the text with each of its choices, and empty
    units. The column `choice` is 1 for a choice and 0 for an empty unit. Raises UserError for `long=windows`."""
    if encoder.format.long == "windows":
        raise UserError("config.format.long is windows, and a choice is scored once, together with its text; expected "
                        "refuse or truncate")
    counts = np.array([len(record.fields["choices"]) for record in records])
    pairs, _, long = encoder.texts(
        [record.fields["text"] for record in records for _ in record.fields["choices"]],
        [choice for record in records for choice in record.fields["choices"]],
        [f"{record.where}, choice {i}" for record in records for i in range(len(record.fields["choices"]))])
    k, ends = int(counts.max()), np.cumsum(counts)
    units = [unit for end, count in zip(ends, counts, strict=True)
             for unit in [*pairs[end - count : end], *[EMPTY] * (k - count)]]
    labels = [int(record.fields.get("label", -1)) for record in records]
    columns = {"label": np.repeat(labels, k), "choice": (np.arange(k) < counts[:, None]).ravel().astype(np.int32)}
    truncated = set(np.searchsorted(ends, long, "right").tolist())
    return encoder.collect(units, np.repeat(np.arange(len(records)), k), columns), len(truncated)


def logits(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, carry: Carry | None = None
) -> tuple[Array, Carry | None]:
    """Computes (logits float32 [b, k], `MASKED` for empty units; the carry after the batch)."""
    y, carry = networks.outputs(params, batch, net, key, carry)
    return jnp.where(batch["choice"] == 1, y[..., 0], MASKED), carry


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the right choice."""
    y, carry = logits(params, batch, net, key, carry)
    value, metrics = networks.cross_entropy(params, batch, net, y, batch["label"][:, 0], ("units", "log_probability"))
    return value, (metrics, carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes `log_probability` float32 [b, k]."""
    return {"units": {"log_probability": jax.nn.log_softmax(logits(params, batch, net)[0])}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts the most probable choice of each example, counted from 0."""
    table = np.reshape(outputs["log_probability"], (len(records), -1)).astype(np.float64)
    chosen = table.argmax(-1).tolist()
    predictions: list[dict[str, Any]] = [
        {"choice": choice, "probabilities": np.exp(row[: len(record.fields["choices"])]).tolist()}
        for choice, row, record in zip(chosen, table, records, strict=True)]
    if not all("label" in record.fields for record in records):
        return Result({}, predictions)
    gold = [int(record.fields["label"]) for record in records]
    metrics = {"loss": float(-table[np.arange(len(gold)), gold].mean()),
               "majority_accuracy": float(np.bincount(gold).max() / len(gold)),
               **figures(("accuracy",), gold, chosen)}
    return Result(metrics, predictions, gold, chosen)


def show(prediction: dict[str, Any]) -> str:
    """Shows the number of the choice with its probability."""
    return f"{prediction['choice']}\t{prediction['probabilities'][prediction['choice']]:.1%}"


DEFINITION = TaskDef(
    networks.definition(Config, networks.builder(
        "multiple_choice", lambda c: 1, lambda batch: batch["label"][:, 0] >= 0, loss, predict), {
        "accuracy": accuracy_metric("Accuracy", baseline="majority_accuracy"),
        "majority_accuracy": accuracy_metric("Accuracy of the most frequent position", headline=False),
    }, (Predict("choose", "chooses between texts", ("text", "choices"), show, tabs=True),), teachable=True),
    Reads(("text", "choices"), ("label",), grouped=True), encode=encode, score=score, best="accuracy",
    columns=lambda c: {"label": Field("bn", np.int32, "number of the right choice"),
                       "choice": Field("bn", np.int32, "1 for a choice, 0 where an example has fewer")},
    check=check, initial={"objective/multiple_choice/dense": "objective/pair/pooler"},
)
