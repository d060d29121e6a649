"""Regression: a number for each text or pair of texts, such as the similarity of two sentences (STS-B)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.text_files import parse_number
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.data.records.values import short
from lmrep.metrics import Metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.objectives.base import Batch, Carry, Metrics
from lmrep.tasks import networks
from lmrep.tasks.base import (
    Comparison,
    Outputs,
    Reads,
    Result,
    TaskDef,
    TextEncoder,
    figures,
    glue_submission,
    mean_by_example,
)
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network

METRICS = ("pearson", "spearman")
LARGEST = 1e15  # largest label: the sum of many squared errors is finite in float32


@dataclass(frozen=True)
class Config(networks.TextConfig):
    """A regression model."""

    minimum: float | None = setting(None, "the smallest number of submission files; smaller ones are raised to it")
    maximum: float | None = setting(None, "their largest number")


def number(record: Record) -> float:
    """Returns the label of a record; NaN if it has none. Raises UserError if it is no number, or too large for squared
    errors in float32."""
    label = record.fields.get("label")
    if label is None:
        return math.nan
    value = parse_number(label)
    if not abs(value) <= LARGEST:
        raise UserError(f"{record.where}: the label is {short(label)}; expected a number, such as 2.5, "
                        f"from {-LARGEST:g} to {LARGEST:g} (for classes, train the task classification)")
    return value


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each text or pair, several of a text that is read in windows."""
    return encoder.units(records, {"label": np.array([number(record) for record in records], np.float32)})


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean squared error."""
    y, carry = networks.outputs(params, batch, net, key, carry)
    label = jnp.where(batch["weights"] > 0, batch["label"], 0.0)
    return (jnp.square(y[..., 0] - label) * batch["weights"]).sum(), ({}, carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes `value` float32 [b, n]."""
    return {"units": {"value": networks.outputs(params, batch, net)[0][..., 0]}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts a number for each text, the mean over its windows."""
    values = mean_by_example(np.stack(outputs["value"]), units.example, len(records)).tolist()
    predictions: list[dict[str, Any]] = [{"value": value} for value in values]
    gold = [number(record) for record in records]
    if any(map(math.isnan, gold)):
        return Result({}, predictions)
    error = float(np.square(np.subtract(values, gold)).mean())
    metrics = {"loss": error, "mean_squared_error": error, "variance": float(np.var(gold)),
               **figures(METRICS, gold, values)}
    return Result(metrics, predictions, gold, values)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Makes the file that GLUE's server takes, with numbers from `minimum` to `maximum`."""
    values = np.array([prediction["value"] for prediction in result.predictions])
    if c.minimum is not None or c.maximum is not None:
        values = np.clip(values, c.minimum, c.maximum)
    return glue_submission(records, [f"{value:.3f}" for value in values])


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares two numbers, by their squared difference."""
    gold, value = number(record), prediction["value"]
    return Comparison(f"{gold:.4g}", f"{value:.4g}", (value - gold) ** 2)


DEFINITION = TaskDef(
    networks.definition(Config, networks.builder(
        "regression", lambda c: 1, lambda batch: (batch["unit"] >= 0) & jnp.isfinite(batch["label"]), loss, predict), {
        **{name: TASK_METRICS[name].metric._replace(headline=True) for name in METRICS},
        "mean_squared_error": Metric("Mean squared error", headline=True, baseline="variance"),
        "variance": Metric("Mean squared error of predicting the mean"),
    }, (Predict("rate", "predicts a number for each text", ("text",), lambda prediction: f"{prediction['value']:.4g}",
                ("text2",)),)),
    Reads(("text",), ("label",), ("text2",)), encode=encode, score=score, best="pearson",
    columns=lambda c: {"label": Field("bn", np.float32, "the number; NaN where it is not known")},
    check=lambda c, record: number(record) and None, submission=submission, compare=compare,
    initial={"objective/regression/dense": "objective/pair/pooler"},
)
