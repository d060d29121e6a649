"""Adagrad (Duchi et al., 2011): divides the gradient by the root of the sum of its squares so far."""

from dataclasses import dataclass

import optax

from lmrep.config.record import setting
from lmrep.core.params import Tree
from lmrep.optimizers.base import OptimizerConfig, OptimizerDef


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of Adagrad."""

    accumulator: float = setting(1.0, "the sum of squared gradients before the first step", above=0)


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Adagrad's direction, with nothing added to the root."""
    return optax.scale_by_rss(config.accumulator, eps=0.0)


DEFINITION = OptimizerDef(direction, config=Config, recipes={
    # ELMo (Peters et al., 2018): the loss is multiplied by the 20 positions of an example.
    "elmo": {"learning_rate": 0.2, "weight_decay": 0.0, "gradient_scale": 20.0, "clip": 10.0,
             "schedule": {"name": "constant"}},
})
