"""Scores over the vocabulary, at chosen positions or at all, and their cross-entropy."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import shard
from lmrep.layers import dropout, linear, norm
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


def logits(params: Tree, table: Array, x: Array) -> Array:
    """x [b, m, e], as `transform` gives it, and the tied table [v, e] (Press and Wolf, 2017) -> float32 [b, m, v]."""
    y = jnp.einsum("bmd,vd->bmv", x, _whole(table).astype(x.dtype), preferred_element_type=jnp.float32)
    return shard(y + params["bias"], "batch", None, "vocab")


def cross_entropy(params: Tree, table: Array, x: Array, targets: Array) -> tuple[Array, Array]:
    """Cross-entropy of the scores, and whether the target is the likeliest word.

    Args:
      params, table, x: as for `logits`.
      targets: i32[b, m], in [0, v): checked on the host, where data enters.

    Returns:
      (nats float32 [b, m]: -log softmax(scores)[target]; hits bool[b, m], no gradient, a tie for the top being one).
    """
    nats, hits, _ = _cross_entropy(*_flat(params, table, x, targets), None, 1.0)
    return nats.reshape(targets.shape), hits.reshape(targets.shape)


def cross_entropy_and_sample(
    params: Tree, table: Array, x: Array, targets: Array, seeds: Array, temperature: float = 1.0
) -> tuple[Array, Array, Array]:
    """As `cross_entropy`, and a word i32[b, m] drawn from softmax(scores / temperature) by the Gumbel-max trick, without a
    gradient. Equal scores and equal `seeds` uint32[b, m] give equal words."""
    nats, hits, words = _cross_entropy(*_flat(params, table, x, targets), seeds.reshape(-1), temperature)
    return tuple(each.reshape(targets.shape) for each in (nats, hits, words))


def _flat(params: Tree, table: Array, x: Array, targets: Array) -> tuple[Array, Array, Array, Array]:
    return x.reshape(-1, x.shape[-1]), _whole(table), params["bias"], targets.reshape(-1)


def chunked_cross_entropy(
    table: Array, x: Array, targets: Array, weights: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """The weighted sum of the cross-entropies at every position of a batch, without scores of all positions at once.

    The positions are taken in up to `PARTS` parts, one after the other, and the gradient of a part is computed where
    its scores are at hand. So no array is larger than [b, t / PARTS, v] or, where that is more, holds more than
    2 * LEAST scores, forward and backward; and the scores are computed once, not again for the gradient.

    Args:
      table: [v, e], tied (Press and Wolf, 2017).
      x: [b, t, e].
      targets: i32[b, t], in [0, v).
      weights: float32 [b, t]; 0 where nothing is asked.
      bias: [v], or None for none.

    Returns:
      (the sum, float32 []; nats float32 [b, t] and hits bool[b, t] as of `cross_entropy`, both without a gradient).
    """
    total, nats, hits = _summed(_whole(table), x, targets, weights, bias)
    return total, jax.lax.stop_gradient(nats), hits


PARTS, LEAST = 32, 2**24  # parts of a batch, at most; scores that need not be cut any smaller


def _parts(b: int, t: int, v: int) -> int:
    """How many parts: cut along t, so that rows stay on their devices."""
    return max(1, min(PARTS, t, b * t * v // LEAST))


def _cut(x: Array, parts: int) -> Array:
    """[b, t, ...] -> [parts, b, t / parts, ...], with zeros at the end where `parts` does not divide t."""
    b, t = x.shape[:2]
    size = -(-t // parts)
    x = jnp.pad(x, [(0, 0), (0, size * parts - t)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(b, parts, size, *x.shape[2:]), 1, 0)


def _joined(parts: Array, t: int) -> Array:
    """The inverse of `_cut`."""
    whole = jnp.moveaxis(parts, 0, 1)
    return whole.reshape(whole.shape[0], -1, *whole.shape[3:])[:, :t]


def _powers(table: Array, bias: Array | None, x: Array, targets: Array) -> tuple[Array, Array, Array, Array]:
    """x [b, t, e] -> (exponentials of the scores less their largest [b, t, v], their sums [b, t], nats, hits)."""
    y = jnp.einsum("btd,vd->btv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    y = shard(y if bias is None else y + bias, "batch", None, "vocab")
    top = y.max(-1)
    own = jnp.take_along_axis(y, targets[..., None], axis=-1)[..., 0]
    powers = jnp.exp(y - top[..., None])
    total = jnp.matmul(powers, jnp.ones(powers.shape[-1]), precision=EXACT)
    return powers, total, jnp.log(total) + top - own, own >= top


def map_chunks(f: Callable[..., Array], v: int, *arrays: Array) -> Array:
    """f of `arrays` [b, t, ...], a part of t at a time where scores of v words at all positions would be large; f gives
    [b, t]. The backward pass computes a part again."""
    b, t = arrays[0].shape[:2]
    parts = _parts(b, t, v)
    if parts == 1:
        return f(*arrays)
    return _joined(jax.lax.map(lambda part: jax.checkpoint(f)(*part), tuple(_cut(x, parts) for x in arrays)), t)


@jax.custom_vjp
def _summed(table: Array, x: Array, targets: Array, weights: Array, bias: Array | None):
    def part(_, given):
        return None, _powers(table, bias, *given)[2:]

    b, t = targets.shape
    cut = partial(_cut, parts=_parts(b, t, table.shape[0]))
    _, (nats, hits) = jax.lax.scan(part, None, (cut(x), cut(targets)))
    nats = _joined(nats, t)
    return (nats * weights).sum(), nats, _joined(hits, t)


def _summed_forward(table: Array, x: Array, targets: Array, weights: Array, bias: Array | None):
    # What `_summed` gives, and by the way the gradients for a cotangent of 1.
    def part(sums, given):
        dtable, dbias = sums
        x, targets, weights = given
        powers, total, nats, hits = _powers(table, bias, x, targets)
        share = weights / total
        dx = jnp.einsum("btv,vd->btd", powers.astype(x.dtype), table.astype(x.dtype)) * share[..., None]
        # Transposed, and turned once at the end: so the product is a quarter faster on XLA's CPU backend.
        dtable += jnp.einsum("btv,btd->dv", powers.astype(x.dtype), x * share[..., None].astype(x.dtype),
                             preferred_element_type=jnp.float32)
        if bias is not None:
            dbias += jnp.einsum("bt,btv->v", share, powers, precision=EXACT)
        return (dtable, dbias), (nats, hits, dx)

    b, t = targets.shape
    cut = partial(_cut, parts=_parts(b, t, table.shape[0]))
    nothing = (shard(jnp.zeros(table.T.shape, jnp.float32), None, "vocab"),
               None if bias is None else jnp.zeros_like(bias))
    (dtable, dbias), parts = jax.lax.scan(part, nothing, (cut(x), cut(targets), cut(weights)))
    nats, hits, dx = (_joined(each, t) for each in parts)
    # softmax(y) - one_hot(target): the second part, of all positions at once.
    dx -= table[targets].astype(dx.dtype) * weights[..., None].astype(dx.dtype)
    dtable = dtable.T.at[targets].add(-x.astype(jnp.float32) * weights[..., None])
    if bias is not None:
        dbias = dbias.at[targets].add(-weights)
    total = (nats * weights).sum()
    return (total, nats, hits), (dtable.astype(table.dtype), dx.astype(x.dtype), dbias, nats)


def _summed_backward(kept: tuple, cotangents: tuple[Array, Array, Array]):
    dtable, dx, dbias, nats = kept
    g = cotangents[0]
    return g * dtable, (g * dx).astype(dx.dtype), None, g * nats, None if dbias is None else g * dbias


_summed.defvjp(_summed_forward, _summed_backward)


def softmax_cross_entropy(scores: Array, targets: Array) -> Array:
    """scores float32 [..., v], targets i32[...] -> nats float32 [...], for small v."""
    own = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - own


def _whole(table: Array) -> Array:
    return shard(table, "vocab", None)  # gathered over fsdp before the product


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _cross_entropy(
    x: Array, table: Array, bias: Array, targets: Array, seeds: Array | None, temperature: float
) -> tuple[Array, Array, Array | None]:
    """x [n, e], table [v, e], bias [v], targets i32[n], seeds uint32[n] -> (nats [n], hits bool[n], words i32[n])."""
    return _forward(x, table, bias, targets, seeds, temperature)[0]


def _forward(
    x: Array, table: Array, bias: Array, targets: Array, seeds: Array | None, temperature: float
) -> tuple[tuple[Array, Array, Array | None], tuple]:
    y = jnp.einsum("nd,vd->nv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    y = shard(y + bias, "batch", "vocab")
    top = y.max(-1)
    own = jnp.take_along_axis(y, targets[:, None], axis=-1)[:, 0]
    # Of the [n, v] arrays the exponentials alone are kept. Dividing them by their sums is left to arrays of [n] and
    # [n, e]: this stage moves memory more than it computes.
    powers = jnp.exp(y - top[:, None])
    total = jnp.matmul(powers, jnp.ones(powers.shape[1]), precision=EXACT)
    words = None if seeds is None else _likeliest(y / temperature + _gumbel(seeds, y.shape[-1]))
    return (jnp.log(total) + top - own, own >= top, words), (x, table, targets, powers, total)


def _gumbel(seeds: Array, v: int) -> Array:
    """Float32 [n, v] of the standard Gumbel distribution, by a hash of (seed, word): nothing is drawn or stored."""
    number = jnp.arange(v, dtype=jnp.uint32) * np.uint32(0x9E3779B1)
    bits = dropout.mix(dropout.mix(number[None] ^ seeds[:, None]) + seeds[:, None])
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23  # neither 0 nor 1
    return -jnp.log(-jnp.log(uniform))


def _likeliest(y: Array) -> Array:
    """y.argmax(-1) of [n, v], i32[n], as two plain reductions: XLA's CPU backend does not vectorise that of pairs."""
    top = y.max(-1, keepdims=True)
    return jnp.where(y == top, jnp.arange(y.shape[-1], dtype=jnp.int32), y.shape[-1] - 1).min(-1)


def _backward(temperature: float, kept: tuple, cotangents: tuple) -> tuple[Array, Array, Array, None, None]:
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
    return dx.astype(x.dtype), dtable.astype(table.dtype), dbias, None, None


_cross_entropy.defvjp(_forward, _backward)
