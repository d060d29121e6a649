"""Lion: the sign of an interpolated momentum (Chen et al., 2023)."""

from dataclasses import dataclass

import optax

from lmrep.config.record import setting
from lmrep.core.params import Tree
from lmrep.optimizers import adamw
from lmrep.optimizers.base import SKIP, OptimizerConfig, OptimizerDef


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of Lion."""

    betas: tuple[float, ...] = setting((0.9, 0.99), "decay rates of the momentum in the update, and of the momentum "
                                       "that is kept", at_least=0, below=1)


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Computes Lion's direction. Its RMS is 1, so that rates are 3 to 10 times lower than Adam's."""
    return optax.scale_by_lion(*config.betas)


DEFINITION = OptimizerDef(direction, config=Config, check=adamw.check, tiny_rate=3e-4, recipes={
    "lion": {"decay_skip": SKIP}})
