"""Muon (Jordan et al., 2024): momentum whose matrices are orthogonalized, layer by layer; and a schedule that stays at
its peak until its last steps. Small, for tests: embeddings are orthogonalized too."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.optimizers.base import SKIP, OptimizerConfig, OptimizerDef, each_layer
from lmrep.optimizers.schedules import DecayConfig, ScheduleDef


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings that no other optimizer has."""

    momentum: float = setting(0.9, "decay rate of the momentum", at_least=0, below=1)
    newton_steps: int = setting(3, "iterations of Newton and Schulz", at_least=1)


def orthogonalized(x: Array, steps: int) -> Array:
    """A matrix whose singular values are near 1; of another tensor its direction."""
    x = x / (jnp.linalg.norm(x) + 1e-8)
    if x.ndim != 2:
        return x
    y = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(steps):
        a = y @ y.T
        y = 3.4445 * y + (2.0315 * a @ a - 4.775 * a) @ y
    return y if y.shape == x.shape else y.T


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    orthogonalize = optax.stateless(lambda updates, params: jax.tree.map(
        lambda x: orthogonalized(x, config.newton_steps), updates))
    return each_layer(optax.chain(optax.trace(config.momentum), orthogonalize), specs)


DEFINITION = OptimizerDef(direction, config=Config, recipes={
    "muon": {"decay_skip": SKIP, "schedule": {"name": "stable"}}})


@dataclass(frozen=True)
class StableConfig(DecayConfig):
    """The settings that no other schedule has."""

    decay_fraction: float = setting(0.25, "the last fraction of the steps, in which the rate falls", above=0, at_most=1)


def stable(config: StableConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    fall = config.decay_fraction * steps
    return lambda step: peak * jnp.clip((steps - step) / fall, config.final, 1.0)


STABLE = ScheduleDef(stable, config=StableConfig)
