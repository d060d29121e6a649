"""Layer normalisation (Ba et al., 2016), with or without a bias, and RMS norm (Zhang and Sennrich, 2019), which leaves
the mean. All are computed in float32."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros
from lmrep.layers.gradient import with_gradient


class Kind(NamedTuple):
    """What a norm does beside dividing by a root mean square."""

    centered: bool  # whether the mean is subtracted first
    bias: bool  # whether a bias is added last


NORMS = {"layer": Kind(True, True), "layer_without_bias": Kind(True, False), "rms": Kind(False, False)}


def specs(d: int, kind: str = "layer") -> Tree:
    """Returns the specs of a scale of ones and, by `kind`, a name in `NORMS`, a bias of zeros, [d] each."""
    vector = ParamSpec((d,), (None,), ones)
    return {"scale": vector} | ({"bias": vector._replace(init=zeros)} if NORMS[kind].bias else {})


def apply(params: Tree, x: Array, eps: float, kind: str = "layer") -> Array:
    """x [..., d] -> [..., d], in x's dtype: mean 0 and variance 1 over d (with "rms", mean square 1), then scaled and,
    with a bias, shifted. `kind` as in `specs`."""
    return _apply(params["scale"], params.get("bias"), x, eps, NORMS[kind].centered)


def _forward(scale: Array, bias: Array | None, x: Array, eps: float, centered: bool) -> tuple[Array, tuple]:
    # The backward pass keeps x and two numbers per position. JAX's derivative keeps two float32 arrays of x's size.
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True) if centered else 0.0
    y = y - mean
    rate = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + eps)
    shift = 0.0 if bias is None else bias
    return (y * rate * scale + shift).astype(x.dtype), (scale, bias, x, mean, rate)


def _backward(eps: float, centered: bool, residuals: tuple, g: Array) -> tuple[Array, Array | None, Array]:
    scale, bias, x, mean, rate = residuals
    y, g = (x.astype(jnp.float32) - mean) * rate, g.astype(jnp.float32)
    dy = g * scale
    dmean = dy.mean(-1, keepdims=True) if centered else 0.0
    dx = rate * (dy - dmean - y * (dy * y).mean(-1, keepdims=True))
    leading = tuple(range(x.ndim - 1))
    dbias = None if bias is None else g.sum(leading).astype(bias.dtype)
    return (g * y).sum(leading).astype(scale.dtype), dbias, dx.astype(x.dtype)


_apply = with_gradient(_forward, _backward, nondiff_argnums=(3, 4))
