"""The linear label gain of Dai and Le (2015): in training, every position of a text predicts its label, with a weight
that grows from 0 at the first position to 1 at the last one. Predictions are those of the last position."""

from collections.abc import Callable

import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.objectives.base import Batch, EvaluationKeys, Keys
from lmrep.objectives.outputs import normalize_weights


def preparing(prepare: Callable[[Keys, Batch], Batch]) -> Callable[[Keys, Batch], Batch]:
    """Returns `Objective.prepare` of a task on texts: `prepare`, and in training `every_position`."""
    def with_gain(keys: Keys, batch: Batch) -> Batch:
        batch = prepare(keys, batch)
        return batch if isinstance(keys, EvaluationKeys) else every_position(batch)

    return with_gain


def every_position(batch: Batch) -> Batch:
    """Makes a unit of every position of a prepared batch [b, t]: the fields of units, [b, n], become [b, t].

    Position i of the n positions of a text has the text's label and the weight i / (n - 1), or 1 if n is 1, divided by
    the batch's total."""
    t, segment_ids = batch["tokens"].shape[1], batch["segment_ids"]
    real, at = segment_ids > 0, jnp.arange(t)

    def of_unit(name: str) -> Array:
        return jnp.take_along_axis(batch[name], (segment_ids - 1).clip(0, batch["unit"].shape[1] - 1), 1)

    first, last = of_unit("first"), of_unit("last")
    gain = jnp.where(last > first, (at - first) / jnp.maximum(last - first, 1), 1.0)
    at = jnp.broadcast_to(at, batch["tokens"].shape)
    return batch | {
        "first": at, "last": at, "unit": jnp.where(real, of_unit("unit"), -1),
        "label": jnp.where(real, of_unit("label"), -1),
        "weights": normalize_weights(gain * (real & (of_unit("weights") > 0)))}
