"""Adagrad (Duchi et al., 2011): the gradient by the root of the sum of its squares, from `optimizer.accumulator`."""

import optax

from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef


def direction(config: OptimizerConfig, specs: Tree) -> optax.GradientTransformation:
    """Adagrad's direction, with nothing added to the root."""
    return optax.scale_by_rss(config.accumulator, eps=0.0)


DEFINITION = OptimizerDef(direction, recipes={
    # ELMo (Peters et al., 2018): the loss is multiplied by the 20 positions of an example.
    "elmo": {"learning_rate": 0.2, "weight_decay": 0.0, "gradient_scale": 20.0, "clip": 10.0,
             "schedule": {"name": "constant"}},
})
