"""Dense layers over the last axis."""

from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import SEQUENCE, axis_size, gather_kernel, sum_kernel_gradient

Axes = tuple[str | None, str | None]


def specs(
    d_in: int, d_out: int, axes: Axes, init: Initializer = normal(),
    blocks: tuple[int, int] = (1, 1), bias: bool = True,
) -> Tree:
    """Returns the specs of a kernel [d_in, d_out] whose dimensions have the logical `axes`, and, unless `bias` is
    False, a bias [d_out]; `blocks` as in `ParamSpec`."""
    kernel = {"kernel": ParamSpec((d_in, d_out), axes, init, blocks)}
    return kernel | ({"bias": ParamSpec((d_out,), axes[1:], zeros, blocks[1:])} if bias else {})


def apply(params: Tree, x: Array, axes: Axes = (None, None)) -> Array:
    """x [..., d_in] -> [..., d_out], in x's dtype. `axes` are those of `specs` where the kernel is sharded along
    `embed`: it is gathered for each of its products."""
    y = product(x, params["kernel"], axes)
    return y + params["bias"].astype(x.dtype) if "bias" in params else y


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: Array, kernel: Array, axes: Axes = (None, None)) -> Array:
    """x [..., i], kernel [i, o] of these logical axes -> [..., o], in x's dtype."""
    return _forward(x, kernel, axes)[0]


def _forward(x: Array, kernel: Array, axes: Axes) -> tuple[Array, tuple[Array, Array]]:
    # Not `product` itself: a remat policy that saves products does not see one inside a custom derivative.
    return jnp.einsum("...i,io->...o", x, gather_kernel(kernel.astype(x.dtype), axes)), (x, kernel)


def _backward(axes: Axes, residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    dx = jnp.einsum("...o,io->...i", g, gather_kernel(kernel.astype(x.dtype), axes))
    return dx, sum_kernel_gradient(_sum_of_products, x, g, axes).astype(kernel.dtype)


def _sum_of_products(x: Array, g: Array) -> Array:
    # JAX's derivative contracts all leading axes of a transposed pair, which is a quarter slower than a matrix product
    # on XLA's CPU backend.
    if axis_size(SEQUENCE) > 1:  # as one dimension with the examples, positions would be gathered
        return jnp.einsum("...i,...o->io", x, g)
    return jnp.einsum("ni,no->io", x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))


product.defvjp(_forward, _backward)
