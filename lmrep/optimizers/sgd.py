"""Stochastic gradient descent, with momentum where `optimizer.momentum` is above 0."""

from dataclasses import dataclass

import optax

from lmrep.config.record import setting
from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of SGD."""

    momentum: float = setting(0.0, "decay rate of the sum of gradients; 0: no momentum", at_least=0, below=1)


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Returns the gradient, or with momentum its decaying sum."""
    return optax.trace(config.momentum) if config.momentum else optax.identity()


DEFINITION = OptimizerDef(direction, config=Config)
