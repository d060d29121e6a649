"""A learned weighted sum of the layers of a network (Peters et al., 2018: ELMo)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros

EPS = 1e-12


def specs(layers: int) -> Tree:
    """Returns the specs `scores` s [n], which begin at 0, and `gamma` [], which begins at 1."""
    return {"scores": ParamSpec((layers,), (None,), zeros), "gamma": ParamSpec((), (), ones)}


def weights(params: Tree) -> Array:
    """Returns softmax(s) float32 [n]."""
    return jax.nn.softmax(params["scores"].astype(jnp.float32))


def apply(params: Tree, layers: Sequence[Array], mask: Array | None = None, norm: bool = False) -> Array:
    """Computes gamma * sum_j softmax(s)_j h_j of n layers [b, t, d].

    With `norm`, each layer is normalized by its mean and variance over all dimensions of all tokens of the batch that
    `mask` bool [b, t] selects, without further parameters, as the released code does where `do_layer_norm` is set. The
    result then depends on what else is in the batch (or microbatch).
    """
    if norm:
        selected = jnp.ones(layers[0].shape[:2], bool) if mask is None else mask
        layers = [normalize(x, selected) for x in layers]
    total = sum(weight * x.astype(jnp.float32) for weight, x in zip(weights(params), layers, strict=True))
    return (params["gamma"] * total).astype(layers[0].dtype)


def normalize(x: Array, mask: Array) -> Array:
    """Normalizes x [b, t, d] to mean 0 and variance 1 over the elements where `mask` bool[b, t] holds."""
    x, selected = x.astype(jnp.float32), mask[..., None]
    count = jnp.maximum(mask.sum() * x.shape[-1], 1)
    mean = jnp.where(selected, x, 0).sum() / count
    variance = jnp.square(jnp.where(selected, x - mean, 0)).sum() / count
    return (x - mean) * jax.lax.rsqrt(variance + EPS)


def penalty(params: Tree, strength: float) -> Array:
    """Returns strength * sum_j s_j^2, on s itself and not on softmax(s): a large one keeps the mix near the average."""
    return strength * jnp.square(params["scores"].astype(jnp.float32)).sum()
