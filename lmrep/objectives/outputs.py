"""The weights, sums and output tables of losses."""

import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.models.base import Model
from lmrep.objectives.base import Metrics


def normalize_weights(mask: Array) -> Array:
    """bool or float [...] -> float32 [...]: divided by the whole array's total, so that the weights add to 1. All zero
    where nothing is to be predicted."""
    mask = mask.astype(jnp.float32)
    return mask / jnp.maximum(mask.sum(), 1.0)


def sums(mask: Array, **values: Array) -> Metrics:
    """Metrics: the sum of each of `values` (float or bool) where `mask` holds, and the number of these positions."""
    count = mask.sum()
    return {name: ((value * mask).sum(), count) for name, value in values.items()}


def output_specs(model: Model) -> Tree:
    """The parameters of an output table that the network does not tie: {} where it does."""
    if model.output_embedding is not None:
        return {}
    shape = (model.vocab_size, model.output_dim)
    return {"output": ParamSpec(shape, ("vocab", "embed"), *filter(None, [model.init]))}


def output_table(model: Model, params: Tree, head: Tree, key: Array | None = None) -> Array:
    """The table [v, e] that multiplies a head's output: the network's, or the one that `output_specs` declares."""
    return head["output"] if model.output_embedding is None else model.output_embedding(params["encoder"], key)
