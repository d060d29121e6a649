"""Multi-head dot-product attention (Vaswani et al., 2017, section 3.2)."""

from functools import partial
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import dropout, linear

HIDDEN = -1e9  # in place of a score that must not count; finite, so that a row that sees nothing is not NaN


@flax.struct.dataclass
class AttentionMask:
    """What each position may attend to: the objective's choice, not the model's."""

    segments: Array  # i32[b, t]; a position sees its own segment alone; 0 is padding
    causal: bool = flax.struct.field(pytree_node=False, default=False)  # whether it sees no later position
    mask: Array | None = None  # bool[b, t, s], in addition to the above; 1 where t may see s

    def allowed(self) -> Array:
        """bool[b, t, s]."""
        allowed = self.segments[:, :, None] == self.segments[:, None, :]
        if self.causal:
            places = jnp.arange(self.segments.shape[1])
            allowed &= places[:, None] >= places[None, :]
        return allowed if self.mask is None else allowed & self.mask


def specs(d: int, heads: int = 1, init: Initializer = normal(), output_init: Initializer | None = None) -> Tree:
    """Query, key, value and output maps, d -> d each, with bias. `output_init` is the last one's, where it differs."""
    k = d // heads  # a mesh axis cuts between heads alone
    return {name: linear.specs(d, d, ("embed", "heads"), init, (1, k)) for name in ("query", "key", "value")} | {
        "output": linear.specs(d, d, ("heads", "embed"), output_init or init, (k, 1))
    }


def apply(
    params: Tree, x: Array, allowed: Array, heads: int, *,
    queries: Array | None = None, rate: float = 0.0, key: Array | None = None,
) -> tuple[Array, Array]:
    """Self-attention.

    Args:
      params: as `specs`.
      x: [b, s, d], what is attended to.
      allowed: bool[b, t, s], from `AttentionMask.allowed`.
      heads: h, a divisor of d.
      queries: [b, t, d], what attends; by default x.
      rate: dropout on the attention probabilities.
      key: for dropout.

    Returns:
      ([b, t, d], probabilities [b, h, t, s] before dropout).
    """
    queries = x if queries is None else queries
    query, past = _heads(params["query"], queries, heads), project_kv(params, x, heads)
    mixed, probabilities = _mix(query, past, allowed, rate, key)
    return linear.apply(params["output"], mixed.reshape(queries.shape)), probabilities


class KVCache(NamedTuple):
    """The keys and values [b, s, h, k] of what was read before."""

    keys: Array
    values: Array


def project_kv(params: Tree, x: Array, heads: int) -> KVCache:
    """The keys and values of x [b, s, d]."""
    return KVCache(_heads(params["key"], x, heads), _heads(params["value"], x, heads))


def cached_attention(params: Tree, x: Array, past: KVCache, place: Array, heads: int) -> tuple[Array, KVCache]:
    """Causal self-attention of x [b, t, d], which stands at the positions from `place` i32[] on, over itself and what
    `past` has before it. Returns (output [b, t, d], `past` with x in its place)."""
    past = jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), place, axis=1),
                        past, project_kv(params, x, heads))
    before = jnp.arange(past.keys.shape[1]) <= (place + jnp.arange(x.shape[1]))[:, None]
    mixed, _ = _mix(_heads(params["query"], x, heads), past, before[None])
    return linear.apply(params["output"], mixed.reshape(x.shape)), past


def _heads(params: Tree, x: Array, heads: int) -> Array:
    """[b, t, d] -> [b, t, h, k]."""
    b, _, d = x.shape
    return shard(linear.apply(params, x).reshape(b, -1, heads, d // heads), "batch", None, "heads", None)


def _mix(
    query: Array, past: KVCache, allowed: Array, rate: float = 0.0, key: Array | None = None
) -> tuple[Array, Array]:
    """(values [b, t, h, k] as each query [b, t, h, k] weighs them, the weights [b, h, t, s] before dropout)."""
    # Positions stay before heads in memory. With heads first XLA's CPU backend is a little faster, and on busy
    # processors it now and then gave rows of garbage.
    return _weigh(query * query.shape[-1] ** -0.5, past.keys, past.values, allowed, key, rate)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _weigh(
    query: Array, keys: Array, values: Array, allowed: Array, key: Array | None, rate: float
) -> tuple[Array, Array]:
    return _forward(query, keys, values, allowed, key, rate)[0]


def _forward(
    query: Array, keys: Array, values: Array, allowed: Array, key: Array | None, rate: float
) -> tuple[tuple[Array, Array], tuple]:
    # Of the [b, h, t, s] arrays the backward pass keeps one, in the dtype of the query. JAX's own derivative keeps
    # three: the weights in float32, after dropout, and its mask.
    scores = jnp.einsum("bthk,bshk->bhts", query, keys)
    scores = jnp.where(allowed[:, None], scores.astype(jnp.float32), HIDDEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    mixed = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, weights, rate), values)
    return (mixed, weights), (query, keys, values, allowed, key, weights)


def _backward(rate: float, kept: tuple, cotangents: tuple[Array, Array]) -> tuple:
    query, keys, values, allowed, key, weights = kept
    g, of_weights = cotangents
    dropped, undrop = jax.vjp(lambda w: dropout.apply(key, w, rate), weights)
    dvalues = jnp.einsum("bhts,bthk->bshk", dropped, g)
    dweights = (undrop(jnp.einsum("bthk,bshk->bhts", g, values))[0] + of_weights).astype(jnp.float32)
    # Rounded to bfloat16 the weights of a row do not sum to 1, and what is common to it would leave a trace.
    own = weights.astype(jnp.float32)
    mean = (own * dweights).sum(-1, keepdims=True) / own.sum(-1, keepdims=True)
    dscores = own * (dweights - mean)
    dscores = jnp.where(allowed[:, None], dscores, 0).astype(query.dtype)
    dquery = jnp.einsum("bhts,bshk->bthk", dscores, keys)
    dkeys = jnp.einsum("bhts,bthk->bshk", dscores, query)
    return dquery, dkeys, dvalues, None, None


_weigh.defvjp(_forward, _backward)
