"""Multi-head dot-product attention (Vaswani et al., 2017, section 3.2)."""

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.core.sharding import gather, shard
from lmrep.layers import dropout, linear, norm, soft_cap
from lmrep.layers.gradient import with_gradient

HEADS = ("batch", "length", "heads", None)  # the logical axes of queries, keys and values
IN, OUT = ("embed", "heads"), ("heads", "embed")  # the logical axes of the kernels before and after the heads
NORM_EPS = 1e-6  # of the norm of queries and keys
MASKED_LOGIT = -1e9  # finite, so that a query that attends to nothing gives no NaN


@flax.struct.dataclass
class AttentionMask:
    """Which positions each position may attend to: the choice of the objective, not of the network."""

    segment_ids: Array  # i32[b, t]; positions attend within their segment; 0 is padding
    causal: bool = flax.struct.field(pytree_node=False, default=False)  # whether later positions are hidden
    mask: Array | None = None  # bool[b, t, s], combined with the above; True where t may attend to s
    # of a network's local attention: positions to each side that are visible; 0: all
    window: int = flax.struct.field(pytree_node=False, default=0)

    def to_bool(self) -> Array:
        """Returns bool[b, t, s]: True where position t may attend to s."""
        mask = self.segment_ids[:, :, None] == self.segment_ids[:, None, :]
        positions = jnp.arange(self.segment_ids.shape[1])
        if self.causal:
            mask &= positions[:, None] >= positions[None, :]
        if self.window:
            mask &= jnp.abs(positions[:, None] - positions[None, :]) <= self.window
        return mask if self.mask is None else mask & self.mask


def specs(
    d: int, heads: int = 1, init: Initializer = normal(), output_init: Initializer | None = None, head_width: int = 0,
    *, query_init: Initializer | None = None, bias: bool = True, query_key_norm: bool = False,
) -> Tree:
    """Returns the specs of query, key and value projections, d -> h k each, and the output projection, h k -> d, with
    `bias`. `output_init` and `query_init` initialize these two projections, by default as `init`; `head_width` is k, by
    default d / h. `query_key_norm` adds the scale [k] of an RMS norm of each head (Henry et al., 2020; Dehghani et al.,
    2023) to query and key."""
    k = head_width or d // heads  # a mesh axis splits between heads only
    inner = linear.specs(d, heads * k, IN, init, (1, k), bias)
    query = linear.specs(d, heads * k, IN, query_init or init, (1, k), bias)
    output = linear.specs(heads * k, d, OUT, output_init or init, (k, 1), bias)
    normed = {"norm": norm.specs(k, "rms")} if query_key_norm else {}
    return {"query": query | normed, "key": inner | normed, "value": inner, "output": output}


# An implementation of attention with its mask bound (`dense`, and those of `attention_backends.ATTENTION`):
#   (query [b, t, h, k], KVCache of s positions, *, at=None, rate=0.0, key=None) -> (weighted sums of the values
#   [b, t, h, k], their weights [b, h, t, s] before dropout, or None where they are not kept).
# `at` i32[b, t] are the positions of the queries; by default t = s and they are 0, 1, 2, ... `rate` and `key` are of
# dropout on the weights.
Attend = Callable[..., tuple[Array, Array | None]]

# Queries or keys [b, t, h, k] and where in x they are, i32[b, t], or None for all its positions -> the same shape.
Rotate = Callable[[Array, Array | None], Array]


def apply(
    params: Tree, x: Array, attend: Attend, heads: int, *,
    at: Array | None = None, rate: float = 0.0, key: Array | None = None, gates: Array | None = None,
    kv: "KVCache | None" = None, rotate: "Rotate | None" = None,
) -> tuple[Array, Array | None]:
    """Computes self-attention of x [b, s, d] with h `heads`, or attention to another text by its keys and values `kv`.

    Args:
      at: i32[b, t], the positions that attend; by default all.
      rate, key: of dropout on the attention probabilities.
      gates: [h] or [b, s, h], factors of the weighted sums of the values; None for 1.
      rotate: applied to queries and keys, for positions that act on them, as rotary ones (Su et al., 2021).

    Returns:
      ([b, t, d], probabilities [b, h, t, s] before dropout, or None where `attend` gives none).
    """
    query = _heads(params["query"], x if at is None else take(x, at), heads)
    query, kv = rotate(query, at) if rotate else query, project_kv(params, x, heads, rotate) if kv is None else kv
    output, probabilities = attend(query, kv, at=at, rate=rate, key=key)
    if gates is not None:
        gates = gates if at is None or gates.ndim == 1 else take(gates, at)
        output *= gates.astype(output.dtype)[..., None]
    return linear.apply(params["output"], output.reshape(*output.shape[:2], -1), OUT), probabilities


def dense(
    mask: Array, bias: Array | None = None, scaled: bool = True, same_along: tuple[int, ...] = (), cap: float = 0.0
) -> Attend:
    """Makes attention that computes and keeps all probabilities at once.

    Args:
      mask: bool[b, t, s]; with `at` bool[b, s, s], as from `AttentionMask.to_bool`.
      bias: added to the logits, [b, h, t, s], or float32 [h, t, s], not with `at`.
      scaled: whether logits are divided by the root of the heads' width.
      same_along: axes of the probabilities [b, h, t, s] along which dropout is the same.
      cap: of the logits before a bias, as in `soft_cap`; 0 for none.
    """
    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        visible = shard(mask if at is None else take(mask, at), "batch", "length", None)
        keys, values = (gather(x, HEADS, "length") for x in kv)
        # Positions stay before heads in memory. With heads first XLA's CPU backend is a little faster, but sometimes
        # gave wrong values on busy processors.
        query = query * query.shape[-1] ** -0.5 if scaled else query
        return _attend(query, keys, values, visible, bias, key, rate, same_along, cap)

    return run


def dense_products(query: Array, keys: Array, values: Array, mask: Array, cap: float = 0.0) -> Array:
    """Computes attention of scaled queries [b, t, h, k] under a mask bool[b, t, s], without dropout -> [b, t, h, k]."""
    return _attend(query, keys, values, mask, None, None, 0.0, (), cap)[0]


def take(x: Array, at: Array) -> Array:
    """Takes x [b, t, ...] at the positions `at` i32[b, m] -> [b, m, ...]."""
    return jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * (x.ndim - 2)), axis=1)


class KVCache(NamedTuple):
    """The keys and values [b, s, h, k] of previous tokens or of another text; where they are kept for generation, heads
    come first, [b, h, s, k]: XLA's CPU backend would transpose the others at every step."""

    keys: Array
    values: Array


def project_kv(params: Tree, x: Array, heads: int, rotate: Rotate | None = None) -> KVCache:
    """Returns the keys and values of x [b, s, d]."""
    keys = _heads(params["key"], x, heads)
    return KVCache(rotate(keys, None) if rotate else keys, _heads(params["value"], x, heads))


def heads_first(kv: KVCache) -> KVCache:
    """Transposes [b, s, h, k] -> [b, h, s, k]."""
    return KVCache(*(shard(x.swapaxes(1, 2), "batch", "heads", "length", None) for x in kv))


def cached_attention(
    params: Tree, x: Array, cache: KVCache, start: Array, heads: int, bias: Array | None = None, scaled: bool = True,
    rotate: Rotate | None = None, window: int = 0, cap: float = 0.0,
) -> tuple[Array, KVCache]:
    """Computes causal self-attention of x [b, t, d], at positions from `start` i32[] on, over the cached positions and
    itself. The cache has its heads first, and keys as `rotate` left them. `bias` [h, t, s], `scaled` and `cap` as in
    `dense`, `rotate` as in `apply`. With a `window`, a position attends to as many, the last of which is its own.
    Returns (output [b, t, d], the cache with the keys and values of x)."""
    cache = jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=2),
        cache, heads_first(project_kv(params, x, heads, rotate)))
    before = (start + jnp.arange(x.shape[1]))[:, None] - jnp.arange(cache.keys.shape[2])
    mask = (before >= 0) & (before < window) if window else before >= 0
    return attend_to_cache(params, x, cache, mask[None], heads, bias, scaled, rotate, cap), cache


def attend_to_cache(
    params: Tree, x: Array, cache: KVCache, mask: Array, heads: int, bias: Array | None = None, scaled: bool = True,
    rotate: Rotate | None = None, cap: float = 0.0,
) -> Array:
    """Computes attention of x [n b, t, d] to keys and values that have their heads first -> [n b, t, d]. The keys of an
    example serve n consecutive examples of x, whose queries are computed as if they were of one text.

    `mask` bool[b or 1, t or 1, s]; `bias` [h, t, s], only where n is 1; `scaled` and `cap` as in `dense`.
    """
    # `dense` avoids this layout, with which it saw wrong values. None was found here: 450 passes of 14 such programs
    # on a busy machine were equal bit by bit.
    query = _heads(params["query"], x, heads)
    query = rotate(query, None) if rotate else query
    query = query.reshape(len(cache.keys), -1, *query.shape[2:]).swapaxes(1, 2)
    query = query * query.shape[-1] ** -0.5 if scaled else query
    logits = soft_cap.apply(jnp.einsum("bhtk,bhsk->bhts", query, cache.keys).astype(jnp.float32), cap)
    logits = jnp.where(mask[:, None], logits if bias is None else logits + bias, MASKED_LOGIT)
    weights = jax.nn.softmax(logits, axis=-1).astype(query.dtype)
    output = jnp.einsum("bhts,bhsk->bhtk", weights, cache.values).swapaxes(1, 2)
    return linear.apply(params["output"], output.reshape(*x.shape[:2], -1), OUT)


def _heads(params: Tree, x: Array, heads: int) -> Array:
    """Projects and reshapes [b, t, d] -> [b, t, h, k], and normalizes each head where there is a norm."""
    y = shard(linear.apply(params, x, IN).reshape(*x.shape[:2], heads, -1), *HEADS)
    return norm.apply(params["norm"], y, NORM_EPS, "rms") if "norm" in params else y


def _forward(
    query: Array, keys: Array, values: Array, mask: Array, bias: Array | None, key: Array | None, rate: float,
    same_along: tuple[int, ...], cap: float,
) -> tuple[tuple[Array, Array], tuple]:
    # The backward pass keeps one [b, h, t, s] array, in the dtype of the query. JAX's derivative keeps three: the
    # weights in float32, the weights after dropout, and its mask.
    logits = _capped_logits(query, keys, cap)
    logits = logits if bias is None else logits + bias
    logits = jnp.where(mask[:, None], logits, MASKED_LOGIT)
    weights = jax.nn.softmax(logits, axis=-1).astype(query.dtype)
    output = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, weights, rate, same_along), values)
    return (output, weights), (query, keys, values, mask, bias, key, weights)


def _capped_logits(query: Array, keys: Array, cap: float) -> Array:
    return soft_cap.apply(jnp.einsum("bthk,bshk->bhts", query, keys).astype(jnp.float32), cap)


def _backward(
    rate: float, same_along: tuple[int, ...], cap: float, residuals: tuple, cotangents: tuple[Array, Array]
) -> tuple:
    query, keys, values, mask, bias, key, weights = residuals
    g, dweights_out = cotangents
    dropped, undrop = jax.vjp(lambda w: dropout.apply(key, w, rate, same_along), weights)
    dvalues = jnp.einsum("bhts,bthk->bshk", dropped, g)
    dweights = (undrop(jnp.einsum("bthk,bshk->bhts", g, values))[0] + dweights_out).astype(jnp.float32)
    # Weights rounded to bfloat16 do not sum to 1: without the division their mean would not cancel.
    weights = weights.astype(jnp.float32)
    mean = (weights * dweights).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    dlogits = weights * (dweights - mean)
    dlogits = jnp.where(mask[:, None], dlogits, 0)
    # A sum over examples, written as a product: XLA's CPU backend takes 60 times as long for the sum.
    dbias = None
    if bias is not None:
        dbias = dlogits.astype(bias.dtype) if bias.ndim == 4 else jnp.einsum(
            "b,bhts->hts", jnp.ones(len(dlogits)), dlogits, precision=jax.lax.Precision.HIGHEST)
    if cap:  # the logits are computed again, since the weights give them only up to a constant
        dlogits = dlogits * soft_cap.slope(_capped_logits(query, keys, cap), cap)
    dlogits = dlogits.astype(query.dtype)
    dquery = jnp.einsum("bhts,bshk->bthk", dlogits, keys)
    dkeys = jnp.einsum("bhts,bthk->bshk", dlogits, query)
    return dquery, dkeys, dvalues, None, dbias, None


_attend = with_gradient(_forward, _backward, nondiff_argnums=(6, 7, 8))
