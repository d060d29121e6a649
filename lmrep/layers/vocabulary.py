"""Scores over the vocabulary at chosen positions, and their cross-entropy."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import shard
from lmrep.layers import linear, norm
from lmrep.layers.mlp import ACTIVATIONS


def specs(d: int, e: int, vocab: int, init: Initializer = normal()) -> Tree:
    """BERT's masked-LM head: a transform from width d to the table's width e, a norm, and the output bias."""
    return {
        "transform": linear.specs(d, e, ("embed", None), init),
        "norm": norm.specs(e),
        "bias": ParamSpec((vocab,), ("vocab",), zeros),
    }


def scores(params: Tree, table: Array, hidden: Array, positions: Array, *, activation: str, eps: float) -> Array:
    """The head, at `positions` alone.

    Args:
      params: as `specs`.
      table: [v, e], the token table (tied, Press and Wolf, 2017).
      hidden: [b, t, d].
      positions: i32[b, m].
      activation: a name in `ACTIVATIONS`.
      eps: of the layer norm.

    Returns:
      float32 [b, m, v].
    """
    x = jnp.take_along_axis(hidden, positions[..., None], axis=1)
    x = norm.apply(params["norm"], ACTIVATIONS[activation](linear.apply(params["transform"], x)), eps)
    table = shard(table, "vocab", None)  # gathered over fsdp before the product
    y = jnp.einsum("bmd,vd->bmv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    return shard(y + params["bias"], "batch", None, "vocab")


def cross_entropy(scores: Array, targets: Array) -> Array:
    """scores float32 [..., v], targets i32[...] -> nats float32 [...]: -log softmax(scores)[target].

    Targets must be in [0, v): they are checked on the host, where data enters.
    """
    own = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - own
