"""StableAdamW: AdamW whose update of each tensor is clipped as Adafactor's (Wortsman et al., 2023), in place of the
gradient's global norm."""

import jax.numpy as jnp
import optax

from lmrep.core.params import Array, ParamSpec, Tree, map_paths
from lmrep.optimizers import adamw
from lmrep.optimizers.base import SKIP, where
from lmrep.optimizers.parameters import is_stacked, matches


def direction(config: adamw.Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Adam's direction with bias correction. The rate of a tensor of one layer, and with it its weight decay,
    is divided by max(1, RMS of gradient / sqrt(second moment))."""
    adam = optax.scale_by_adam(*config.betas, config.eps)
    skipped = matches(config.decay_skip, specs, "optimizer.decay_skip", optional=SKIP)

    def clipped(path: str, spec: ParamSpec, update: Array, grad: Array, moment: Array, param: Array) -> Array:
        axes = tuple(range(is_stacked(spec), grad.ndim))
        square = jnp.square(grad) / jnp.maximum(moment, config.eps**2)
        factor = 1 / jnp.maximum(1.0, jnp.sqrt(square.mean(axes, keepdims=True)))
        # The decay is added to the direction at full rate; this takes off what the factor does.
        decay = where(skipped[path], jnp.zeros_like(param), config.weight_decay * param)
        return factor * update + (factor - 1) * decay

    def update(grads: Tree, state: optax.ScaleByAdamState, params: Tree) -> tuple[Tree, optax.ScaleByAdamState]:
        updates, state = adam.update(grads, state, params)
        moments = optax.tree.bias_correction(state.nu, config.betas[1], state.count)
        return map_paths(clipped, specs, updates, grads, moments, params), state

    return optax.GradientTransformation(adam.init, update)


DEFINITION = adamw.DEFINITION._replace(direction=direction, recipes={
    # Warner et al., 2024 (ModernBERT), but for the weight decay, 1e-5 of the parameter at the peak of the rate.
    "stable_adamw": {"betas": (0.9, 0.98), "bias_correction": True, "clip": 0.0, "decay_skip": SKIP}})
