"""The parts of DeBERTa that other Transformers do not have: attention with disentangled positions and the enhanced mask
decoder (He et al., 2021), and the convolution beside the first layer (version 2)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import gather
from lmrep.layers import attention as attention_layer
from lmrep.layers import convolution, disentangled_attention, dropout, mlp, residual
from lmrep.layers.attention import Attend, AttentionMask, take
from lmrep.models.transformer_config import Config


def attention(
    params: Tree, mask: AttentionMask, *, c: Config, dtype: str
) -> Callable[[Tree, int, Array | None], Attend]:
    """Makes (the parameters of a layer's attention, the number of its heads, key) -> attention. Dropout acts on the
    embeddings of distances, in each layer anew."""
    relative, visible = disentangled_attention.embeddings(params["relative"], c.norm_eps, dtype), mask.to_bool()
    return lambda p, heads, key: disentangled_attention.attend(
        p, dropout.apply(key, relative, c.dropout), visible, heads, c.buckets, c.position_terms)


def add_convolution(
    params: Tree, x: Array, y: Array, mask: AttentionMask, key: Array | None, at: Array | None, c: Config
) -> Array:
    """Adds to the output y [b, t, d] of the first layer, at positions `at` or all, a convolution of its input x
    [b, s, d], with dropout and the activation, and normalizes the sum. It reads no position that the mask hides."""
    x = convolution.apply(params["convolution"], x, mask.to_bool())
    x = mlp.ACTIVATIONS[c.activation](dropout.apply(key, x, c.dropout))
    x = x if at is None else take(x, at)
    return residual.apply(params["convolution_norm"], y, lambda _: (x, None), pre=False, eps=c.norm_eps,
                          kind=c.norm_kind)[0]


def mask_decoder(
    params: Tree, positions: Array, attend: Callable[[Tree, int, Array | None], Attend], layer: Callable[..., Any],
    c: Config,
) -> Callable[..., tuple[Array, tuple[None, None]]]:
    """Makes the enhanced mask decoder, which runs in place of the last layer, `c.mask_decoder` times with its
    parameters. Queries know their position; keys and values are always those of the layer's input.

    Args:
      params: the network's parameters.
      positions: i32[b, t].
      attend: the last layer's `attention`.
      layer: applies a layer: (its parameters, x, function of the attention block, keys) -> (x, anything).
      c: the network's config.

    Returns:
      A function for `stack.apply`: (parameters, x [b, t, d], (key, gates), at) -> (x, (None, None)).
    """

    def decode(p: Tree, x: Array, slices: tuple[Array | None, ...], at: Array | None = None) -> tuple[Array, tuple]:
        table, (key, gates) = gather(params["mask_decoder"]["position"], (None, "embed"), "embed"), slices
        y = x + jnp.take(table, positions, axis=0).astype(x.dtype)
        kv = attention_layer.project_kv(p["attention"], x, c.heads)
        if at is not None:
            y, gates = take(y, at), gates if gates is None or gates.ndim == 1 else take(gates, at)

        def step(y: Array, key: Array | None) -> Array:
            attention_key, relative_key, *keys = prng.split(key, 5)
            here = attend(p["attention"], c.heads, relative_key)

            def block(y: Array) -> tuple[Array, None]:
                return attention_layer.apply(
                    p["attention"], y, lambda *query_kv, **options: here(*query_kv, **options | {"at": at}), c.heads,
                    rate=c.attention_dropout, key=attention_key, gates=gates, kv=kv)

            return layer(p, y, block, keys=keys)[0]

        for step_key in prng.split(key, c.mask_decoder):
            y = step(y, step_key)
        return y, (None, None)

    return decode
