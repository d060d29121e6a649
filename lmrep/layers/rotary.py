"""Rotary positions (Su et al., 2021): queries and keys are rotated by angles that grow with the position."""

import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.layers.attention import Rotate, take


def rotary(positions: Array, width: int, base: float = 10_000.0) -> Rotate:
    """Makes the rotation of heads [b, t, h, k], of which the first `width` entries are rotated, for `attention.apply`.

    Entry i of the first half is the first coordinate of a plane, and entry i of the second half the other, as in
    GPT-NeoX and ModernBERT. The angle of plane i is position * base^(-2 i / width).

    Args:
      positions: i32[b, t].
      width: an even number of entries, at most k.
      base: the larger, the more slowly the last planes turn: longer texts need larger ones.
    """
    angles = positions[..., None, None] * base ** (-jnp.arange(0, width, 2) / width)

    def rotate(x: Array, at: Array | None) -> Array:
        chosen = angles if at is None else take(angles, at)
        sin, cos = jnp.sin(chosen), jnp.cos(chosen)
        y = x.astype(jnp.float32)
        first, second = jnp.split(y[..., :width], 2, -1)
        turned = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate([*turned, y[..., width:]], -1).astype(x.dtype)

    return rotate
