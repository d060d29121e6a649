"""Adam with decoupled weight decay (Loshchilov and Hutter, 2019), with or without bias correction."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Tree
from lmrep.optimizers.base import SKIP, OptimizerConfig, OptimizerDef


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of Adam and LAMB."""

    betas: tuple[float, ...] = setting((0.9, 0.999), "decay rates of the two moments", at_least=0, below=1)
    eps: float = setting(1e-6, "added to the square root of the second moment", above=0)
    bias_correction: bool = setting(False, "divide the moments by 1 - beta^step (neither BERT nor ALBERT does)")


def check(config: Config) -> None:
    """Raises UserError unless there are two decay rates."""
    if len(config.betas) != 2:
        raise UserError(f"optimizer.betas is {config.betas}; expected two numbers, for example (0.9, 0.999)")


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Adam's direction (Kingma and Ba, 2015), or BERT's, which has no bias correction."""
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


DEFINITION = OptimizerDef(direction, config=Config, check=check, recipes={
    # Devlin et al.: no bias correction, and decay counted from step 0.
    "bert": {"decay_skip": SKIP, "schedule": {"decay_from": "start"}},
    # Liu et al.: weight decay for all parameters, no clipping.
    "roberta": {"betas": (0.9, 0.98), "bias_correction": True, "clip": 0.0},
    # Loshchilov and Hutter, as in most libraries.
    "adamw": {"bias_correction": True, "eps": 1e-8, "decay_skip": SKIP},
})
