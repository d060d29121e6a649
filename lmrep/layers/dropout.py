"""Dropout (Srivastava et al., 2014) with masks that cost little and do not depend on the mesh."""

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array


def apply(key: Array | None, x: Array, rate: float) -> Array:
    """Zeroes each element of x with probability `rate` and scales the others by 1 / (1 - rate).

    The identity where `key` is None or `rate` is 0.
    """
    if key is None or rate == 0:
        return x
    return _dropped(x, bits(key, x.shape), rate)


def rows(key: Array | None, x: Array, places: Array, rate: float) -> Array:
    """Of a table [v, d] whose rows `places` i32[...] are x [..., d]: what these are of `apply(key, table, rate)`, which
    is never made."""
    if key is None or rate == 0:
        return x
    first = places[..., None].astype(jnp.uint32) * np.uint32(x.shape[-1])
    return _dropped(x, _hash(key, first + jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)), rate)


def _dropped(x: Array, words: Array, rate: float) -> Array:
    keep = words >= np.uint32(round(rate * 2**32))
    return jnp.where(keep, x.astype(jnp.float32) / (1 - rate), 0).astype(x.dtype)  # bfloat16 has no 0.9


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """uint32[shape], one word an element: a hash of (key, the element's number).

    Threefry costs some fifty operations a word, which made masks a third of a small model's step; dropout
    does not need that quality. An element's word depends on its place in the whole array alone, so that any
    sharding gives the same mask, and a backward pass may compute it again rather than keep it.
    """
    number = jnp.zeros(shape, jnp.uint32)
    for axis, stride in enumerate(np.cumprod((1, *shape[:0:-1]))[::-1]):
        number += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride % 2**32)
    return _hash(key, number)


def _hash(key: Array, number: Array) -> Array:
    seed = jax.random.key_data(key).astype(jnp.uint32).ravel()
    return mix(mix(number * np.uint32(0x9E3779B1) + seed[0]) ^ seed[-1])


def mix(x: Array) -> Array:
    """A 32-bit permutation in which each bit of the input flips each bit of the output half of the time
    (the "lowbias32" constants of C. Wellons' search for such functions)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
