"""Generation with Transformer-XL and XLNet: a cache of keys and values, no longer than the memory."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Tree
from lmrep.layers import norm, relative_attention, stack
from lmrep.layers.relative_attention import Mask
from lmrep.models.transformer_xl_layers import Config, Streams, embed, layer, layer_specs, relative_positions


class Cache(NamedTuple):
    """The keys and values of the last m tokens, the most recent one last, for generation."""

    keys: Array  # [l, b, m, h, k]
    values: Array  # [l, b, m, h, k]
    positions: Array  # [l, n, h, k], the keys of the n distances that a single token needs
    length: Array  # i32[], number of tokens read


def start_cache(
    params: Tree, batch_size: int, length: int, *, c: Config, execution: stack.Execution = stack.Execution()
) -> Cache:
    """Makes an empty cache of `memory` tokens; without a memory, for `length` tokens."""
    m = min(c.memory, length) if c.memory else length
    empty = jnp.zeros((c.layers, batch_size, m, c.heads, c.head_width), execution.dtype)
    relative = relative_positions(1, _distances(1, m, c) - 1, True, None, c).astype(execution.dtype)
    _, positions = stack.apply(
        [lambda p, x, _: (x, relative_attention.position_keys(p["attention"], relative, c.heads))] * c.layers,
        params["layers"], layer_specs(c), jnp.float32(0), None, execution=_scanned(execution))
    return Cache(empty, empty, positions, jnp.int32(0))


def _scanned(execution: stack.Execution) -> stack.Execution:
    """Returns `execution` with scanned layers: without a gradient, a stack need not be unrolled."""
    return replace(execution, scan=True, remat="none")


def _distances(t: int, m: int, c: Config) -> int:
    """Returns the number of distances of t tokens with a cache of m: to all keys, -1, and one for the query stream."""
    return t + m + (1 if c.causal else 2)


def decode(
    params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, query: bool = False, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> tuple[Array, Cache]:
    """Returns the output [b, t, d] at the next t tokens i32[b, t], and the cache with these tokens.

    Each token attends to itself and to `memory` tokens before it, or to all without a memory. It is what `encode` gives
    when it is given the tokens one at a time, each with the memory of those before it, however they are divided into
    calls. With `query`, the output is the query stream at the position after each token, which attends to that token
    and those before it. `real` i32[] is the number of the t tokens that are not padding.
    """
    (b, t), m = tokens.shape, cache.keys.shape[2]
    s, n, count = m + t, _distances(t, m, c), t if real is None else real
    x = embed(params, tokens, c).astype(execution.dtype)
    g = jnp.broadcast_to(params["query"], x.shape).astype(execution.dtype) if query else None
    relative = relative_positions(t, n - 1, True, None, c).astype(execution.dtype)
    distance = m + jnp.arange(t)[:, None] - jnp.arange(s)
    known = (distance >= 0) & (jnp.arange(s) >= m - cache.length)

    def mask(distance: Array) -> Mask:
        visible = known & (distance < c.memory + (not c.same_length)) if c.memory else known
        return Mask(jnp.broadcast_to(visible, (b, t, s)), None, None, t)

    def run(p: Tree, streams: Streams, layer_cache: Cache) -> tuple[Streams, Cache]:
        attention, biases = p["attention"], p["attention"] if c.untie else params["biases"]
        positions = layer_cache.positions if t == 1 else relative_attention.position_keys(
            attention, relative, c.heads)
        source = norm.apply(p["attention_norm"], streams.content, c.norm_eps) if c.norm == "pre" else streams.content
        new = relative_attention.keys_and_values(attention, source, c.heads)
        keys, values = (jnp.concatenate(pair, 1) for pair in zip(
            (layer_cache.keys, layer_cache.values), new, strict=True))

        def at(x: Array, first: int, mask: Mask) -> Array:
            text_keys = relative_attention.Keys(keys, values, positions[first : first + s + 1])
            return layer(p, biases, x, keys=text_keys, mask=mask, key=None, c=c)[0]

        g = None if streams.query is None else at(streams.query, 0, mask(distance + 1))
        streams = Streams(at(streams.content, n - s - 1, mask(distance)), g)
        keys, values = (jax.lax.dynamic_slice_in_dim(part, count, m, 1) for part in (keys, values))
        return streams, layer_cache._replace(keys=keys, values=values)

    streams, layer_caches = stack.apply(
        [run] * c.layers, params["layers"], layer_specs(c), Streams(x, g), cache._replace(length=None),
        execution=_scanned(execution))
    hidden = streams.query if query else streams.content
    if c.norm == "pre":
        hidden = norm.apply(params["final_norm"], hidden, c.norm_eps)
    return hidden, layer_caches._replace(length=cache.length + count)
