"""A network that lmrep does not know, with parts of ModernBERT's (Warner et al., 2024): rotary positions, layer norm
without a bias, a gated feed-forward block, and global attention in every third layer, local attention in the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.params import Array, ParamSpec, Tree, normal
from lmrep.layers import attention, attention_backends, mlp, norm, stack
from lmrep.layers.attention import Attend, AttentionMask, KVCache, Rotate, take
from lmrep.models.base import Context, Encoded, HeadStyle, Inputs, Model, ModelDef, Output, State, check_inputs

INPUTS = frozenset({"tokens", "positions", "attention_mask"})
EPS, GLOBAL_EVERY = 1e-5, 3


@dataclass(frozen=True)
class Config:
    """Sizes."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    width: int = setting(16, "d", at_least=1)
    layers: int = setting(7, "l", at_least=1)
    heads: int = setting(2, "h", at_least=1)
    mlp: int = setting(24, "f", at_least=1)
    window: int = setting(3, "positions that local attention reads", at_least=1)
    norm: str = setting("layer_without_bias", "the norm before each block", choices=tuple(norm.NORMS))
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)


class Cache(NamedTuple):
    """Keys, as rotated, and values of all layers."""

    kv: KVCache
    length: Array


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "alternating") -> Model:
    """The network of config `c`."""
    return Model(
        name, specs(c), partial(encode, c=c, execution=execution), c.width, c.vocab, c.max_length, INPUTS,
        frozenset({Context.LEFT, Context.BOTH}), Output(c.width, lambda params, key=None: params["token"]),
        State(cache=partial(start_cache, c=c), decode=partial(decode, c=c, execution=execution)),
        head_style=HeadStyle(eps=EPS))


def layer_specs(c: Config) -> Tree:
    """The parameters of one layer."""
    return {"attention": attention.specs(c.width, c.heads, bias=False), "attention_norm": norm.specs(c.width, c.norm),
            "mlp": mlp.specs(c.width, c.mlp, bias=False, gated=True), "mlp_norm": norm.specs(c.width, c.norm)}


def specs(c: Config) -> Tree:
    """`token` [v, d], `layers` and `final_norm`."""
    return {"token": ParamSpec((c.vocab, c.width), ("vocab", "embed"), normal(0.1)),
            "layers": stack.specs(layer_specs(c), c.layers), "final_norm": norm.specs(c.width, c.norm)}


def rotary(positions: Array, k: int) -> Rotate:
    """Rotates pairs of entries of heads [b, t, h, k] by angles that grow with the positions i32[b, t]."""
    angles = positions[..., None, None] * 10000.0 ** (-jnp.arange(0, k, 2) / k)

    def rotate(x: Array, at: Array | None) -> Array:
        chosen = angles if at is None else take(angles, at)
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * jnp.cos(chosen) - second * jnp.sin(chosen),
                                second * jnp.cos(chosen) + first * jnp.sin(chosen)], -1).astype(x.dtype)

    return rotate


def alternate(layer: Callable, of_global: object, of_local: object, c: Config) -> list[Callable]:
    """The layers, two functions."""
    kinds = [partial(layer, kind=of_global)] + [partial(layer, kind=of_local)] * (GLOBAL_EVERY - 1)
    return [kinds[i % GLOBAL_EVERY] for i in range(c.layers)]


def block(p: Tree, x: Array, attend: Callable[[Array], tuple], c: Config, at: Array | None = None) -> tuple:
    """One layer, and what its attention gives beside its output."""
    y, other = attend(norm.apply(p["attention_norm"], x, EPS, c.norm))
    x = (x if at is None else take(x, at)) + y
    return x + mlp.apply(p["mlp"], norm.apply(p["mlp_norm"], x, EPS, c.norm), "gelu"), other


def encode(params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
           attention: bool = False, c: Config, execution: stack.Execution) -> Encoded:
    """As `Model.encode`, without dropout."""
    check_inputs(inputs, INPUTS)
    t, mask = inputs.tokens.shape[1], inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens))
    near = jnp.abs(jnp.arange(t)[:, None] - jnp.arange(t)) < c.window
    bind = partial(attention_backends.bind, execution.attention, head_width=c.width // c.heads, dtype=execution.dtype,
                   dropout=False)
    order = jnp.broadcast_to(jnp.arange(t), inputs.tokens.shape) if inputs.positions is None else inputs.positions
    rotate = rotary(order, c.width // c.heads)

    def layer(p: Tree, x: Array, given: None, kind: Attend, at: Array | None = None) -> tuple[Array, tuple]:
        x, _ = block(p, x, lambda y: _attention(p, y, kind, rotate, at, c), c, at)
        return x, (x if layers else None,)

    x = params["token"][inputs.tokens].astype(execution.dtype)
    functions = alternate(layer, bind(mask), bind(mask.replace(mask=jnp.broadcast_to(near, (len(x), t, t)))), c)
    last, collected = stack.apply(functions, params["layers"], layer_specs(c), x, None, execution=execution,
                                  last=None if at is None else partial(functions[-1], at=at))
    return Encoded(norm.apply(params["final_norm"], last, EPS, c.norm), (x, *collected[0]) if layers else None)


def _attention(p: Tree, y: Array, attend: Attend, rotate: Rotate, at: Array | None, c: Config) -> tuple:
    return attention.apply(p["attention"], y, attend, c.heads, at=at, rotate=rotate)


def start_cache(params: Tree, batch_size: int, length: int, *, c: Config) -> Cache:
    """An empty cache."""
    empty = jnp.zeros((c.layers, batch_size, c.heads, length, c.width // c.heads))
    return Cache(KVCache(empty, empty), jnp.int32(0))


def decode(params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, c: Config,
           execution: stack.Execution) -> tuple[Array, Cache]:
    """As `State.decode`."""
    t = tokens.shape[1]
    rotate = rotary(jnp.broadcast_to(cache.length + jnp.arange(t), tokens.shape), c.width // c.heads)

    def layer(p: Tree, x: Array, kv: KVCache, kind: int) -> tuple[Array, KVCache]:
        return block(p, x, lambda y: attention.cached_attention(
            p["attention"], y, kv, cache.length, c.heads, rotate=rotate, window=kind), c)

    x, kv = stack.apply(alternate(layer, 0, c.window, c), params["layers"], layer_specs(c), params["token"][tokens],
                        cache.kv, execution=replace(execution, remat="none"))
    return norm.apply(params["final_norm"], x, EPS, c.norm), Cache(kv, cache.length + (t if real is None else real))


DEFINITION = ModelDef(Config, build, tiny={"vocab": 0}, dropout_fields=(), architecture_fields=("window", "norm"))
