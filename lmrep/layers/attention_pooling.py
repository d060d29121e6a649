"""One vector for a text: a sum of its tokens' vectors with learned weights (Lin et al., 2017; Yang et al., 2016)."""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.layers import linear


def specs(d: int, width: int, init: Initializer = normal()) -> Tree:
    """Returns the specs of a dense layer [d, width], tanh, and a vector u [width]."""
    return {"dense": linear.specs(d, width, ("embed", None), init), "vector": ParamSpec((width,), (None,), init)}


def weights(params: Tree, x: Array, mask: Array) -> Array:
    """Returns the softmax of u . tanh(W x + b) over the tokens of each of n texts, which `mask` bool [b, n, t] selects,
    for x [b, t, d]: float32 [b, n, t], 0 in a text without tokens."""
    scores = (jnp.tanh(linear.apply(params["dense"], x)).astype(jnp.float32) @ params["vector"])[:, None]
    return jax.nn.softmax(jnp.where(mask, scores, -1e30), -1) * mask


def apply(params: Tree, x: Array, mask: Array) -> Array:
    """x [b, t, d], mask bool [b, n, t] -> [b, n, d]; arguments as in `weights`."""
    return jnp.einsum("bnt,btd->bnd", weights(params, x, mask).astype(x.dtype), x)
