"""Soft-capped logits (Gemma 2, Riviere et al., 2024): cap * tanh(x / cap), near x where |x| is small, within the cap
everywhere. The cap 0 stands for none."""

import jax.numpy as jnp

from lmrep.core.params import Array


def apply(x: Array, cap: float) -> Array:
    """Caps x [...]."""
    return cap * jnp.tanh(x / cap) if cap else x


def slope(capped: Array, cap: float) -> Array | float:
    """Returns the derivative [...] of `apply` where its result is `capped`."""
    return 1 - jnp.square(capped / cap) if cap else 1.0
