"""Dense layers over the last axis."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import SEQUENCE, axis_size


def specs(
    d_in: int, d_out: int, axes: tuple[str | None, str | None], init: Initializer = normal(),
    blocks: tuple[int, int] = (1, 1),
) -> Tree:
    """A kernel [d_in, d_out] whose dimensions have the logical `axes`, and a bias [d_out]; `blocks` as in
    `ParamSpec`."""
    return {"kernel": ParamSpec((d_in, d_out), axes, init, blocks),
            "bias": ParamSpec((d_out,), axes[1:], zeros, blocks[1:])}


def apply(params: Tree, x: Array) -> Array:
    """x [..., d_in] -> [..., d_out], in x's dtype."""
    return product(x, params["kernel"].astype(x.dtype)) + params["bias"].astype(x.dtype)


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """x [..., i], kernel [i, o] -> [..., o]."""
    return jnp.einsum("...i,io->...o", x, kernel)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    # Not `product` itself: a remat policy that saves products does not see one inside a custom derivative.
    return jnp.einsum("...i,io->...o", x, kernel), (x, kernel)


def _backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    # JAX's derivative contracts all leading axes of a transposed pair, which is a quarter slower than a matrix product
    # on XLA's CPU backend.
    x, kernel = residuals
    dx = jnp.einsum("...o,io->...i", g, kernel)
    if axis_size(SEQUENCE) > 1:  # as one dimension with the examples, positions would be gathered
        return dx, jnp.einsum("...i,...o->io", x, g)
    rows, g_rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    return dx, jnp.einsum("ni,no->io", rows, g_rows)


product.defvjp(_forward, _backward)
