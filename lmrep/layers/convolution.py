"""A convolution over positions."""

import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.layers import linear


def specs(d: int, width: int, init: Initializer = normal()) -> Tree:
    """Returns a kernel [width, d, d] and a bias [d]; the width is odd."""
    return {"kernel": ParamSpec((width, d, d), (None, "embed", None), init), "bias": ParamSpec((d,), (None,), zeros)}


def apply(params: Tree, x: Array, visible: Array) -> Array:
    """x [b, t, d] -> [b, t, d]: the sum over the positions within half a width, each times its matrix, of those that
    are `visible`, bool[b, t, t], as from `AttentionMask.to_bool`. The others count as 0."""
    t, width = x.shape[1], params["kernel"].shape[0]
    side = (0, 0), (width // 2, width // 2)
    x, visible = jnp.pad(x, (*side, (0, 0))), jnp.pad(visible, ((0, 0), *side))
    y = params["bias"].astype(x.dtype)
    for i in range(width):
        seen = jnp.diagonal(visible, i, 1, 2)[:, :t, None]
        y += linear.product(jnp.where(seen, x[:, i : i + t], 0), params["kernel"][i], ("embed", None))
    return y
