"""Layer normalisation (Ba et al., 2016), and RMS norm (Zhang and Sennrich, 2019), which has no mean and no bias. Both
are computed in float32."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros
from lmrep.layers.gradient import with_gradient


def specs(d: int, rms: bool = False) -> Tree:
    """A scale of ones and, unless it is RMS norm, a bias of zeros, [d] each."""
    scale = {"scale": ParamSpec((d,), (None,), ones)}
    return scale if rms else scale | {"bias": ParamSpec((d,), (None,), zeros)}


def apply(params: Tree, x: Array, eps: float) -> Array:
    """x [..., d] -> [..., d]: mean 0 and variance 1 over d, then scaled and shifted. In x's dtype. Without a bias, RMS
    norm: mean square 1 over d, then scaled."""
    return _apply(params["scale"], params.get("bias"), x, eps)


def _forward(scale: Array, bias: Array | None, x: Array, eps: float) -> tuple[Array, tuple]:
    # The backward pass keeps x and two numbers per position. JAX's derivative keeps two float32 arrays of x's size.
    y = x.astype(jnp.float32)
    mean = 0.0 if bias is None else y.mean(-1, keepdims=True)
    y = y - mean
    rate = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + eps)
    shift = 0.0 if bias is None else bias
    return (y * rate * scale + shift).astype(x.dtype), (scale, bias, x, mean, rate)


def _backward(eps: float, residuals: tuple, g: Array) -> tuple[Array, Array | None, Array]:
    scale, bias, x, mean, rate = residuals
    y, g = (x.astype(jnp.float32) - mean) * rate, g.astype(jnp.float32)
    dy = g * scale
    dmean = 0.0 if bias is None else dy.mean(-1, keepdims=True)
    dx = rate * (dy - dmean - y * (dy * y).mean(-1, keepdims=True))
    leading = tuple(range(x.ndim - 1))
    dbias = None if bias is None else g.sum(leading).astype(bias.dtype)
    return (g * y).sum(leading).astype(scale.dtype), dbias, dx.astype(x.dtype)


_apply = with_gradient(_forward, _backward, nondiff_argnums=(3,))
