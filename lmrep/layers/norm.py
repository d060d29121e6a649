"""Layer normalisation (Ba et al., 2016), computed in float32."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros
from lmrep.layers.gradient import with_gradient


def specs(d: int) -> Tree:
    """A scale of ones and a bias of zeros, [d] each."""
    return {"scale": ParamSpec((d,), (None,), ones), "bias": ParamSpec((d,), (None,), zeros)}


def apply(params: Tree, x: Array, eps: float) -> Array:
    """x [..., d] -> [..., d]: mean 0 and variance 1 over d, then scaled and shifted. In x's dtype."""
    return _apply(params["scale"], params["bias"], x, eps)


def _forward(scale: Array, bias: Array, x: Array, eps: float) -> tuple[Array, tuple]:
    # The backward pass keeps x and two numbers per position. JAX's derivative keeps two float32 arrays of x's size.
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    y = y - mean
    rate = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + eps)
    return (y * rate * scale + bias).astype(x.dtype), (scale, bias, x, mean, rate)


def _backward(eps: float, residuals: tuple, g: Array) -> tuple[Array, Array, Array]:
    scale, bias, x, mean, rate = residuals
    y, g = (x.astype(jnp.float32) - mean) * rate, g.astype(jnp.float32)
    dy = g * scale
    dx = rate * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True))
    leading = tuple(range(x.ndim - 1))
    return (g * y).sum(leading).astype(scale.dtype), g.sum(leading).astype(bias.dtype), dx.astype(x.dtype)


_apply = with_gradient(_forward, _backward, nondiff_argnums=(3,))
