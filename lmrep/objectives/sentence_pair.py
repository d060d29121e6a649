"""Classification of sentence pairs: next-sentence prediction (Devlin et al., 2019, section 3.1) or sentence-order
prediction (Lan et al., 2019, section 3.1). The format makes the labels; network and loss are the same."""

import jax.numpy as jnp
import optax

from lmrep.core.params import Array, Tree
from lmrep.layers import linear
from lmrep.metrics import accuracy_metric, fraction_metric, loss_metric, optional
from lmrep.models.base import Model
from lmrep.objectives.base import BATCH_FIELDS, Batch, Metrics
from lmrep.objectives.outputs import normalize_weights, sums

METRICS = optional({
    "pair_loss": loss_metric("Sentence-pair loss", baseline="entropy of pair_fraction"),
    "pair_accuracy": accuracy_metric("Sentence-pair accuracy", baseline="majority of pair_fraction"),
    "pair_fraction": fraction_metric("Fraction of pairs with label 1"),
})


def batch_fields(c) -> tuple[str, ...]:
    """Names the batch fields that an objective needs whose config has the field `sentence_pair`."""
    return (*BATCH_FIELDS, "pair_label") if c.sentence_pair else BATCH_FIELDS


def specs(model: Model) -> Tree:
    """Declares the pooler (dense and tanh on one position) and the two-way classifier."""
    return {
        "pooler": linear.specs(model.width, model.width, ("embed", None), model.head_style.init),
        "classifier": linear.specs(model.width, 2, (None, None), model.head_style.init),
    }


def position(model: Model, segment_ids: Array) -> Array:
    """Returns the position i32[b] whose vector represents each example with `segment_ids` i32[b, t]: the first, or the
    last that is not padding (`HeadStyle.pooling`)."""
    if model.head_style.pooling == "first":
        return jnp.zeros(len(segment_ids), jnp.int32)
    return jnp.where(segment_ids > 0, jnp.arange(segment_ids.shape[1]), 0).max(1).astype(jnp.int32)


def weights(batch: Batch) -> Batch:
    """Returns `pair_weights` float32 [b], equal for all examples but empty ones, which have 0."""
    return {"pair_weights": normalize_weights(batch["segment_ids"][:, 0] > 0)}


def logits(params: Tree, first: Array) -> Array:
    """Computes logits float32 [b, 2] of label 0 (next, in order) and 1 (random, swapped), given the last layer's output
    at one position [b, d]."""
    pooled = jnp.tanh(linear.apply(params["pooler"], first))
    return linear.apply(params["classifier"], pooled.astype(jnp.float32))


def loss(params: Tree, first: Array, batch: Batch) -> tuple[Array, Metrics]:
    """Computes the mean cross-entropy over the batch's pairs."""
    y = logits(params, first)
    nll = optax.softmax_cross_entropy_with_integer_labels(y, batch["pair_label"])
    return (nll * batch["pair_weights"]).sum(), sums(
        batch["pair_weights"] > 0, pair_loss=nll, pair_accuracy=y.argmax(-1) == batch["pair_label"],
        pair_fraction=batch["pair_label"])
