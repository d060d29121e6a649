"""Stochastic gradient descent, with momentum where `optimizer.momentum` is above 0."""

import optax

from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef


def direction(config: OptimizerConfig, specs: Tree) -> optax.GradientTransformation:
    """The gradient, or its decaying sum."""
    return optax.trace(config.momentum) if config.momentum else optax.identity()


DEFINITION = OptimizerDef(direction)
