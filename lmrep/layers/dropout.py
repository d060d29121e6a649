"""Dropout (Srivastava et al., 2014) with masks that are cheap and do not depend on the mesh."""

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array


def apply(key: Array | None, x: Array, rate: float, same_along: tuple[int, ...] = ()) -> Array:
    """Zeroes each element of x with probability `rate` and scales the others by 1 / (1 - rate). Along the axes
    `same_along`, numbered from 0, the mask is the same.

    The identity where `key` is None or `rate` is 0.
    """
    if key is None or rate == 0:
        return x
    shape = tuple(1 if i in same_along else n for i, n in enumerate(x.shape))
    return _dropped(x, _hash(key, _number(shape, shape, (0,) * len(shape))), rate)


def apply_to_rows(key: Array | None, x: Array, ids: Array, rate: float) -> Array:
    """Computes `apply(key, table, rate)[ids]` of the rows x = table[ids], without doing so for the table [v, d]."""
    if key is None or rate == 0:
        return x
    first = ids[..., None].astype(jnp.uint32) * np.uint32(x.shape[-1])
    return _dropped(x, _hash(key, first + jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)), rate)


def apply_to_block(
    key: Array | None, x: Array, rate: float, shape: tuple[int, ...], start: tuple[int | Array, ...]
) -> Array:
    """Returns what `apply(key, array, rate)` makes of a block x from index `start` on of an array of `shape`."""
    if key is None or rate == 0:
        return x
    return _dropped(x, _hash(key, _number(x.shape, shape, start)), rate)


def _dropped(x: Array, words: Array, rate: float) -> Array:
    keep = words >= np.uint32(round(rate * 2**32))
    return jnp.where(keep, x.astype(jnp.float32) / (1 - rate), 0).astype(x.dtype)  # bfloat16 has no 0.9


def _number(block: tuple[int, ...], shape: tuple[int, ...], start: tuple[int | Array, ...]) -> Array:
    """Returns uint32[block], the numbers (modulo 2^32) of the elements of a block in an array of that shape."""
    number = jnp.zeros(block, jnp.uint32)
    for axis, (stride, first) in enumerate(zip(np.cumprod((1, *shape[:0:-1]))[::-1], start, strict=True)):
        index = jax.lax.broadcasted_iota(jnp.uint32, block, axis)
        if not (isinstance(first, int) and first == 0):
            index += jnp.asarray(first).astype(jnp.uint32)
        number += index * np.uint32(stride % 2**32)
    return number


def _hash(key: Array, number: Array) -> Array:
    """Returns random bits uint32 for each element: a hash of the key and the element's number.

    Threefry takes about fifty operations per word, a third of a small model's step, and dropout does not need its
    quality. The bits depend on the index in the global array only, so that every sharding gives the same mask and the
    backward pass may recompute it.
    """
    seed = jax.random.key_data(key).astype(jnp.uint32).ravel()
    return mix(mix(number * np.uint32(0x9E3779B1) + seed[0]) ^ seed[-1])


def mix(x: Array) -> Array:
    """Permutes 32-bit numbers; each input bit flips each output bit about half of the time (Wellons's "lowbias32")."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
