"""Attention in memory that grows with the number of positions, not with its square (FlashAttention, Dao et al., 2022).

Probabilities are computed for a block of queries and a block of keys at a time, in the forward pass and again in the
backward pass, which keeps of each query only its largest logit and its sum of exponentials. Outputs, gradients and
dropout equal those of `attention.dense` up to rounding, and do not depend on the size of the blocks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array
from lmrep.core.sharding import gather_length, map_shards, platform, shard_start
from lmrep.layers import dropout, soft_cap
from lmrep.layers.attention import HEADS, MASKED_LOGIT, Attend, AttentionMask, KVCache, take
from lmrep.layers.gradient import with_gradient

BLOCK = 512  # queries and keys of a block, at most
CPU_BLOCK = 2**19  # probabilities of a block on a CPU, for which they stay in its caches


def block_size(sequences: int, heads: int) -> int:
    """Queries and keys of a block, at most."""
    if platform() != "cpu":
        return BLOCK
    return next((size for size in (512, 256, 128) if sequences * heads * size**2 <= CPU_BLOCK), 64)


def attend(mask: AttentionMask, block: int = 0, cap: float = 0.0) -> Attend:
    """Computes attention under `mask` in blocks of at most `block` queries and keys (0: `block_size`), without
    probabilities; `cap` as in `attention.dense`."""
    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        length = mask.segment_ids.shape[1]
        positions = jnp.arange(length)[None] if mask.causal else None
        queries = mask.segment_ids, positions, mask.mask
        if at is not None:
            query_mask = None if mask.mask is None else take(mask.mask, at)
            queries = take(mask.segment_ids, at), at if mask.causal else None, query_mask
        # A query that attends to no key gives all of them the same weight, as in `dense`; no block may be missing then.
        aligned = mask.causal and at is None and mask.mask is None
        shape = (query.shape[0], query.shape[2], query.shape[1], length)

        def run_shard(query: Array, keys: Array, values: Array, *arrays: Array | None) -> Array:
            keys, values = (gather_length(x, length) for x in (keys, values))
            b, t, h, _ = shard_start(HEADS, (shape[0], shape[2], shape[1], 0))
            static = _Static(rate, block or block_size(*query.shape[::2]),
                             not aligned or query.shape[1] < length, shape, cap)
            return _attend(query, keys, values, _Arrays(*arrays, (b, h, t)), static)

        axes = HEADS, HEADS, HEADS, HEADS[:2], HEADS[:2], (*HEADS[:2], None), ("batch", None), (None, None), ()
        return map_shards(run_shard, axes, query * query.shape[-1] ** -0.5, *kv, *queries, mask.segment_ids, positions,
                          key), None

    return run


class _Arrays(NamedTuple):
    """The arguments that have no gradient."""

    query_segments: Array  # i32[b, t]
    query_positions: Array | None  # i32[b or 1, t], where the mask is causal
    mask: Array | None  # bool[b, t, s]
    key_segments: Array  # i32[b, s]
    key_positions: Array | None  # i32[1, s]
    key: Array | None  # for dropout
    start: tuple[int | Array, ...]  # the index [b, h, t] of the first query in the array of all


class _Static(NamedTuple):
    """What the program depends on."""

    rate: float
    block: int
    attends_to_later_keys: bool  # whether a query may attend to the keys of later blocks
    shape: tuple[int, ...]  # [b, h, t, s] of all probabilities, on all devices
    cap: float  # of the logits; 0 for none


class _Blocks(NamedTuple):
    """Queries and keys as blocks: [n, b, size, ...], filled with zeros."""

    query: Array
    keys: Array
    query_segments: Array
    key_segments: Array
    query_positions: Array | None
    key_positions: Array | None
    mask: Array | None  # [n of queries, b, size, n of keys, size]
    pairs: np.ndarray  # i32[number, 2], the indices of blocks of queries and of keys that meet


def _forward(query: Array, keys: Array, values: Array, arrays: _Arrays, static: _Static) -> tuple[Array, tuple]:
    blocks = _blocks(query, keys, arrays, static)
    value_blocks = _split(values, blocks.keys.shape[2])
    n, b, t, h, _ = blocks.query.shape
    start = (jnp.zeros((n, b, t, h, values.shape[-1]), jnp.float32), jnp.full((n, b, h, t), -jnp.inf),
             jnp.zeros((n, b, h, t)))

    def step(sums: tuple, pair: Array) -> tuple[tuple, None]:
        (weighted_values, largest, total), (i, j) = sums, pair
        logits = _logits(blocks, i, j, keys.shape[1], static.cap)
        peak = jnp.maximum(largest[i], logits.max(-1))
        weights = jnp.exp(logits - peak[..., None]).astype(values.dtype)
        scale = jnp.exp(largest[i] - peak)
        dropped = _dropped(weights, i, j, arrays, static)
        product = jnp.einsum("bhts,bshk->bthk", dropped, value_blocks[j], preferred_element_type=jnp.float32)
        rescaled = scale.swapaxes(1, 2)[..., None] * weighted_values[i]
        return (weighted_values.at[i].set(rescaled + product), largest.at[i].set(peak),
                total.at[i].set(scale * total[i] + weights.astype(jnp.float32).sum(-1))), None

    (weighted_values, largest, total), _ = jax.lax.scan(step, start, blocks.pairs)
    output = _join(weighted_values / total.swapaxes(2, 3)[..., None], query.shape[1]).astype(query.dtype)
    return output, (query, keys, values, arrays, output, largest, total)


def _backward(static: _Static, residuals: tuple, g: Array) -> tuple:
    query, keys, values, arrays, output, largest, total = residuals
    blocks = _blocks(query, keys, arrays, static)
    value_blocks, g_blocks = _split(values, blocks.keys.shape[2]), _split(g, blocks.query.shape[2])
    # The mean of the gradients by a query's logits, from its output (Dao et al., 2022, appendix B.4).
    means = _split((g.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1), blocks.query.shape[2]).swapaxes(2, 3)

    def step(sums: tuple, pair: Array) -> tuple[tuple, None]:
        (dquery, dkeys, dvalues), (i, j) = sums, pair
        logits = _logits(blocks, i, j, keys.shape[1], static.cap)
        weights = jnp.exp(logits - largest[i][..., None]) / total[i][..., None]
        dropped, dweights = (_dropped(x, i, j, arrays, static) for x in (
            weights, jnp.einsum("bthk,bshk->bhts", g_blocks[i], value_blocks[j], preferred_element_type=jnp.float32)))
        visible, dlogits = logits > MASKED_LOGIT, weights * (dweights - means[i][..., None])
        if static.cap:
            dlogits = dlogits * soft_cap.slope(logits, static.cap)
        dlogits = jnp.where(visible, dlogits, 0).astype(query.dtype)
        products = (jnp.einsum("bhts,bshk->bthk", dlogits, blocks.keys[j], preferred_element_type=jnp.float32),
                    jnp.einsum("bhts,bthk->bshk", dlogits, blocks.query[i], preferred_element_type=jnp.float32),
                    jnp.einsum("bhts,bthk->bshk", dropped.astype(g.dtype), g_blocks[i],
                               preferred_element_type=jnp.float32))
        return tuple(sum_.at[at].add(product) for sum_, at, product in zip(
            (dquery, dkeys, dvalues), (i, j, j), products, strict=True)), None

    start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (blocks.query, blocks.keys, value_blocks))
    grads, _ = jax.lax.scan(step, start, blocks.pairs)
    dquery, dkeys, dvalues = (_join(grad, x.shape[1]).astype(x.dtype)
                              for grad, x in zip(grads, (query, keys, values), strict=True))
    return dquery, dkeys, dvalues, None


_attend = with_gradient(_forward, _backward, nondiff_argnums=(4,))


def _blocks(query: Array, keys: Array, arrays: _Arrays, static: _Static) -> _Blocks:
    t, s = (_ceil_div(x.shape[1], _ceil_div(x.shape[1], static.block)) for x in (query, keys))  # equal where t = s
    mask = arrays.mask
    if mask is not None:
        mask = _split(mask, t)
        mask = jnp.pad(mask, [(0, 0)] * 3 + [(0, -mask.shape[3] % s)]).reshape(*mask.shape[:3], -1, s)
    query, query_segments = _split(query, t), _split(arrays.query_segments, t)
    keys, key_segments = _split(keys, s), _split(arrays.key_segments, s)
    positions = (None if x is None else _split(x, size)
                 for x, size in ((arrays.query_positions, t), (arrays.key_positions, s)))
    pairs = [(i, j) for i in range(len(query)) for j in range(len(keys)) if j <= i or static.attends_to_later_keys]
    return _Blocks(query, keys, query_segments, key_segments, *positions, mask, np.array(pairs, np.int32))


def _ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def _split(x: Array, size: int) -> Array:
    """Splits [b, t, ...] -> [n, b, size, ...], filled with zeros."""
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, size, *x.shape[2:]).swapaxes(0, 1)


def _join(blocks: Array, length: int) -> Array:
    """Inverts `_split`."""
    return blocks.swapaxes(0, 1).reshape(blocks.shape[1], -1, *blocks.shape[3:])[:, :length]


def _logits(blocks: _Blocks, i: Array, j: Array, length: int, cap: float) -> Array:
    """Returns f32[b, h, t, s] of a block of queries and one of keys: MASKED_LOGIT where a query does not attend to a
    key, and minus infinity beyond the keys, of which there are `length`."""
    logits = jnp.einsum("bthk,bshk->bhts", blocks.query[i], blocks.keys[j], preferred_element_type=jnp.float32)
    logits = soft_cap.apply(logits, cap)
    mask = blocks.query_segments[i][:, :, None] == blocks.key_segments[j][:, None, :]
    if blocks.query_positions is not None:
        mask &= blocks.query_positions[i][:, :, None] >= blocks.key_positions[j][:, None, :]
    if blocks.mask is not None:
        mask &= blocks.mask[i][:, :, j]
    logits = jnp.where(mask[:, None], logits, MASKED_LOGIT)
    size = blocks.keys.shape[2]
    if length % size == 0:
        return logits
    return jnp.where(j * size + jnp.arange(size) < length, logits, -jnp.inf)


def _dropped(x: Array, i: Array, j: Array, arrays: _Arrays, static: _Static) -> Array:
    """Returns the block [b, h, t, s] as dropout leaves it in the array of all probabilities."""
    b, h, first = arrays.start
    _, _, t, s = x.shape
    return dropout.apply_to_block(arrays.key, x, static.rate, static.shape, (b, h, first + i * t, j * s))
