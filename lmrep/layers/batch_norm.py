"""Batch normalization (Ioffe and Szegedy, 2015): by the mean and variance of each dimension over a batch in training,
by their running averages in evaluation, so that predictions do not depend on the batch."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, ones, zeros

EPSILON = 1e-5  # added to the variance, as in PyTorch
KEPT = 0.9  # of the running statistics, after each batch; PyTorch's momentum is 1 - KEPT


def specs(d: int) -> Tree:
    """Returns the specs `scale` and `bias` [d]."""
    return {"scale": ParamSpec((d,), (None,), ones), "bias": ParamSpec((d,), (None,), zeros)}


def statistics(d: int) -> Tree:
    """Returns the running statistics before the first batch: `mean` 0 and `variance` 1, float32 [d]."""
    return {"mean": jnp.zeros(d), "variance": jnp.ones(d)}


def apply(params: Tree, running: Tree, x: Array, mask: Array, training: bool) -> tuple[Array, Tree]:
    """Normalizes each dimension of x [..., d] over the vectors where `mask` bool[...] holds; in `training` by this
    batch, otherwise by the `running` statistics, which then stay as they are. Returns (y [..., d] in x's dtype, the
    running statistics after the batch; their variance is the unbiased estimate)."""
    y = x.astype(jnp.float32)
    mean, variance = running["mean"], running["variance"]
    if training:
        axes, weights = tuple(range(x.ndim - 1)), mask[..., None].astype(jnp.float32)
        count = jnp.maximum(weights.sum(), 1)
        mean = (y * weights).sum(axes) / count
        variance = (jnp.square(y - mean) * weights).sum(axes) / count
        measured = {"mean": mean, "variance": variance * count / jnp.maximum(count - 1, 1)}
        running = {name: jax.lax.stop_gradient(KEPT * running[name] + (1 - KEPT) * measured[name]) for name in measured}
    y = (y - mean) * jax.lax.rsqrt(variance + EPSILON) * params["scale"] + params["bias"]
    return y.astype(x.dtype), running
