"""A vector for a word from its characters: a convolution and the maximum over its positions (Ma and Hovy, 2016; the
chunker of Peters et al., 2017)."""

import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.layers import dropout
from lmrep.layers.recurrent import uniform

BYTES = 256
TABLE = BYTES + 1  # byte values + 1, and 0 for padding


def specs(d: int, filters: int, window: int) -> Tree:
    """Returns the specs of a table [`TABLE`, d] of characters, and a kernel [window, d, filters] with its bias."""
    return {"embedding": ParamSpec((TABLE, d), (None, None), uniform((3 / d) ** 0.5)),
            "kernel": ParamSpec((window, d, filters), (None, None, None), uniform((3 / (window * d)) ** 0.5)),
            "bias": ParamSpec((filters,), (None,), zeros)}


def apply(params: Tree, characters: Array, key: Array | None = None, rate: float = 0.0) -> Array:
    """characters i32[..., c], 0 after the word -> [..., filters]; 0 where there is no character.

    The convolution is at each character, with zeros around the word. `rate` is of dropout on the
    characters' vectors, with `key`.
    """
    window = params["kernel"].shape[0]
    real = characters > 0
    x = dropout.apply(key, jnp.take(params["embedding"], characters, axis=0), rate) * real[..., None]
    left = (window - 1) // 2
    pad = [(0, 0)] * (x.ndim - 2) + [(left, window - 1 - left), (0, 0)]
    x = jnp.pad(x, pad)
    size = characters.shape[-1]
    y = sum(x[..., i : i + size, :] @ params["kernel"][i] for i in range(window)) + params["bias"]
    best = jnp.where(real[..., None], jnp.tanh(y), -1.0).max(-2)
    return jnp.where(real.any(-1, keepdims=True), best, 0)
