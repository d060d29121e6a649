"""Adam with decoupled weight decay (Loshchilov and Hutter, 2019), with or without bias correction."""

import jax
import jax.numpy as jnp
import optax

from lmrep.core.errors import UserError
from lmrep.core.params import Tree
from lmrep.optimizers.base import SKIP, OptimizerConfig, OptimizerDef


def check(config: OptimizerConfig) -> None:
    """Raises UserError unless there are two decay rates."""
    if len(config.betas) != 2:
        raise UserError(f"optimizer.betas is {config.betas}; expected two numbers, for example (0.9, 0.999)")


def direction(config: OptimizerConfig, specs: Tree) -> optax.GradientTransformation:
    """Adam's direction (Kingma and Ba, 2015), or BERT's, without bias correction."""
    (beta1, beta2), eps = config.betas, config.eps
    adam = optax.scale_by_adam(beta1, beta2, eps)
    if config.bias_correction:
        return adam

    def update(grads: Tree, state: optax.ScaleByAdamState, params: Tree = None) -> tuple[Tree, optax.ScaleByAdamState]:
        m = optax.tree.update_moment(grads, state.mu, beta1, 1)
        v = optax.tree.update_moment(grads, state.nu, beta2, 2)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), m, v)
        return direction, optax.ScaleByAdamState(state.count + 1, m, v)

    return optax.GradientTransformation(adam.init, update)


DEFINITION = OptimizerDef(direction, check=check, recipes={
    # Devlin et al.: no bias correction, and decay counted from step 0.
    "bert": {"decay_skip": SKIP, "schedule": {"decay_from": "start"}},
    # Liu et al.: weight decay for all parameters, no clipping.
    "roberta": {"betas": (0.9, 0.98), "bias_correction": True, "clip": 0.0},
    # Loshchilov and Hutter, as in most libraries.
    "adamw": {"bias_correction": True, "eps": 1e-8, "decay_skip": SKIP},
})
