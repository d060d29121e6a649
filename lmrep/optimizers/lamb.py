"""LAMB: Adam's updates, scaled to the norm of each layer's tensors (You et al., 2020)."""

import jax.numpy as jnp
import numpy as np
import optax

from lmrep.core.params import Array, ParamSpec, Tree, map_paths
from lmrep.optimizers import adamw
from lmrep.optimizers.base import SKIP, where
from lmrep.optimizers.parameters import is_stacked


def trust_ratio(config: adamw.Config, specs: Tree, decayed: dict[str, np.ndarray]) -> optax.GradientTransformation:
    """Scales an update to the norm of its tensor, for parameters with weight decay."""
    def scale(path: str, spec: ParamSpec, update: Array, param: Array) -> Array:
        axes = tuple(range(is_stacked(spec), update.ndim))
        length, step = (jnp.sqrt(jnp.square(x).sum(axes, keepdims=True)) for x in (param, update))
        ratio = jnp.where((length > 0) & (step > 0), length / step, 1.0)
        return where(decayed[path], update * ratio, update)

    return optax.stateless(lambda updates, params: map_paths(scale, specs, updates, params))


DEFINITION = adamw.DEFINITION._replace(rescale=trust_ratio, tiny_rate=1e-2, recipes={
    # Lan et al.: parameters without decay have no trust ratio either.
    "lamb": {"decay_skip": SKIP, "schedule": {"decay_from": "start"}},
})
