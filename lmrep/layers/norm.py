"""Layer normalisation (Ba et al., 2016), computed in float32."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros


def specs(d: int) -> Tree:
    """A scale of ones and a bias of zeros, [d] each."""
    return {"scale": ParamSpec((d,), (None,), ones), "bias": ParamSpec((d,), (None,), zeros)}


def apply(params: Tree, x: Array, eps: float) -> Array:
    """x [..., d] -> [..., d]: mean 0 and variance 1 over d, then scaled and shifted. In x's dtype."""
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + eps)
    return (y * params["scale"] + params["bias"]).astype(x.dtype)
