"""Scores over the vocabulary at chosen positions, and their cross-entropy."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import shard
from lmrep.layers import linear, norm
from lmrep.layers.mlp import ACTIVATIONS

EXACT = jax.lax.Precision.HIGHEST  # sums written as products, which accelerators would otherwise round


def specs(d: int, e: int, vocab: int, init: Initializer = normal()) -> Tree:
    """BERT's masked-LM head: a transform from width d to the table's width e, a norm, and the output bias."""
    return {
        "transform": linear.specs(d, e, ("embed", None), init),
        "norm": norm.specs(e),
        "bias": ParamSpec((vocab,), ("vocab",), zeros),
    }


def transform(params: Tree, hidden: Array, *, activation: str, eps: float) -> Array:
    """The head up to the table: hidden [b, m, d] -> [b, m, e]."""
    return norm.apply(params["norm"], ACTIVATIONS[activation](linear.apply(params["transform"], hidden)), eps)


def scores(params: Tree, table: Array, x: Array) -> Array:
    """x [b, m, e], as `transform` gives it, and the tied table [v, e] (Press and Wolf, 2017) -> float32 [b, m, v]."""
    y = jnp.einsum("bmd,vd->bmv", x, _whole(table).astype(x.dtype), preferred_element_type=jnp.float32)
    return shard(y + params["bias"], "batch", None, "vocab")


def asked(params: Tree, table: Array, x: Array, targets: Array) -> tuple[Array, Array]:
    """Cross-entropy of the scores, and whether the target is the likeliest word.

    Args:
      params, table, x: as for `scores`.
      targets: i32[b, m], in [0, v): checked on the host, where data enters.

    Returns:
      (nats float32 [b, m]: -log softmax(scores)[target]; hits bool[b, m], no gradient, a tie for the top being one).
    """
    rows = x.reshape(-1, x.shape[-1])
    nats, hits = _cross_entropy(rows, _whole(table), params["bias"], targets.reshape(-1))
    return nats.reshape(targets.shape), hits.reshape(targets.shape)


def cross_entropy(scores: Array, targets: Array) -> Array:
    """scores float32 [..., v], targets i32[...] -> nats float32 [...], for small v."""
    own = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - own


def _whole(table: Array) -> Array:
    return shard(table, "vocab", None)  # gathered over fsdp before the product


@jax.custom_vjp
def _cross_entropy(x: Array, table: Array, bias: Array, targets: Array) -> tuple[Array, Array]:
    """x [n, e], table [v, e], bias [v], targets i32[n] -> (nats [n], hits bool[n])."""
    return _forward(x, table, bias, targets)[0]


def _forward(x: Array, table: Array, bias: Array, targets: Array) -> tuple[tuple[Array, Array], tuple]:
    y = jnp.einsum("nd,vd->nv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    y = shard(y + bias, "batch", "vocab")
    top = y.max(-1)
    own = jnp.take_along_axis(y, targets[:, None], axis=-1)[:, 0]
    # Of the [n, v] arrays the exponentials alone are kept. Dividing them by their sums is left to arrays of [n] and
    # [n, e]: this stage moves memory more than it computes.
    powers = jnp.exp(y - top[:, None])
    total = jnp.matmul(powers, jnp.ones(powers.shape[1]), precision=EXACT)
    return (jnp.log(total) + top - own, own >= top), (x, table, targets, powers, total)


def _backward(kept: tuple, cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array, None]:
    # d nats / d y = softmax(y) - one_hot(target), never written down.
    x, table, targets, powers, total = kept
    g = cotangents[0]
    share = g / total
    dx = (powers.astype(x.dtype) @ table.astype(x.dtype)) * share[:, None] - table[targets] * g[:, None]
    # The table's gradient is summed in float32: in bfloat16 that of a frequent word would stop growing.
    dtable = jnp.einsum("nv,nd->vd", powers.astype(x.dtype), x * share[:, None].astype(x.dtype),
                        preferred_element_type=jnp.float32)
    dtable = dtable.at[targets].add(-x * g[:, None])
    dbias = jnp.matmul(share, powers, precision=EXACT).at[targets].add(-g)
    return dx.astype(x.dtype), dtable.astype(table.dtype), dbias, None


_cross_entropy.defvjp(_forward, _backward)
