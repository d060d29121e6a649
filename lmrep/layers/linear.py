"""Affine maps over the last axis."""

import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros


def specs(d_in: int, d_out: int, axes: tuple[str | None, str | None], init: Initializer = normal()) -> Tree:
    """A kernel [d_in, d_out] whose dimensions have the logical `axes`, and a bias [d_out]."""
    return {"kernel": ParamSpec((d_in, d_out), axes, init), "bias": ParamSpec((d_out,), axes[1:], zeros)}


def apply(params: Tree, x: Array) -> Array:
    """x [..., d_in] -> [..., d_out], in x's dtype."""
    return jnp.einsum("...i,io->...o", x, params["kernel"].astype(x.dtype)) + params["bias"].astype(x.dtype)
