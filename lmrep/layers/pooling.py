"""The largest of several vectors, in each dimension."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array


def largest(x: Array, ranks: Array, axis: int) -> Array:
    """Selects the values of x where `ranks`, of its shape, is largest along an axis; the first of equal ones, as in
    PyTorch."""
    # The gradient of `max` compares its result with the operand, which a compiler may compute again with another
    # rounding: then none is equal, and the gradient is 0 / 0.
    at = jax.lax.stop_gradient(ranks).argmax(axis, keepdims=True)
    return jnp.take_along_axis(x, at, axis).squeeze(axis)
