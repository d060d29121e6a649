"""Attention to the neighbours of each position (Beltagy et al., 2020), whose cost grows with length times window."""

import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.layers.attention import Attend, AttentionMask, KVCache, dense, dense_products


def attend(mask: AttentionMask, cap: float = 0.0) -> Attend:
    """Computes attention under a mask with a window w, without probabilities. Blocks of w queries attend to their own
    block and its two neighbours. `cap` as in `attention.dense`.

    All products are computed, as in `attention.dense`, where blocks save nothing (texts of at most 3 w), at chosen
    positions, under a mask of all pairs of positions, and with dropout, whose draws belong to all pairs.
    """
    width = mask.window

    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        b, t, _, _ = query.shape
        if at is not None or mask.mask is not None or t <= 3 * width or (rate and key is not None):
            return dense(mask.to_bool(), cap=cap)(query, kv, at=at, rate=rate, key=key)[0], None
        numbers = _blocks(jnp.arange(t)[None], width, fill=-2 * t)  # beyond every window
        distance = numbers[..., :, None] - _neighbours(numbers, fill=-4 * t)[..., None, :]
        segments = _blocks(mask.segment_ids, width)
        visible = (jnp.abs(distance) <= width) & (segments[..., :, None] == _neighbours(segments)[..., None, :])
        if mask.causal:
            visible &= distance >= 0
        query, *kv = (x.reshape(-1, *x.shape[2:]) for x in (
            _blocks(query * query.shape[-1] ** -0.5, width), *(_neighbours(_blocks(x, width)) for x in kv)))
        output = dense_products(query, *kv, visible.reshape(-1, *visible.shape[2:]), cap)
        return output.reshape(b, -1, *output.shape[2:])[:, :t], None

    return run


def _blocks(x: Array, size: int, fill: int = 0) -> Array:
    """Splits [b, t, ...] -> [b, n, size, ...], filled up with `fill`."""
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
    return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _neighbours(blocks: Array, fill: int = 0) -> Array:
    """Joins each block with the ones before and after it: [b, n, size, ...] -> [b, n, 3 size, ...]."""
    edges = jnp.pad(blocks, [(0, 0), (1, 1)] + [(0, 0)] * (blocks.ndim - 2), constant_values=fill)
    return jnp.concatenate([edges[:, :-2], blocks, edges[:, 2:]], axis=2)
