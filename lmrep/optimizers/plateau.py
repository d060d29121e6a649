"""A learning rate that falls when validation does not improve, as for SGD in recurrent translation models (Luong et
al., 2015), and ends training once it is small.

The factor of the rate is in the optimizer's state, so that it is saved and restored with the moments.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.optimizers.schedules import Rule, ScheduleConfig, ScheduleDef, constant


@dataclass(frozen=True)
class Config(ScheduleConfig):
    """The settings of the schedule."""

    final: float = setting(0.0, "training ends when the rate is below this fraction of the peak; 0: it does not",
                           at_least=0, at_most=1)
    factor: float = setting(0.5, "the rate is multiplied by it after each validation whose loss is not below the "
                            "lowest so far", above=0, below=1)


class Plateau(NamedTuple):
    """The part of the optimizer's state that belongs to the schedule."""

    scale: Array  # f32[], factor of the learning rate
    lowest: Array  # f32[], the lowest validation loss so far; infinite before the first


def scale_by_plateau() -> optax.GradientTransformation:
    """Multiplies updates by `Plateau.scale`."""
    return optax.GradientTransformation(
        lambda params: Plateau(jnp.float32(1), jnp.float32(jnp.inf)),
        lambda updates, state, params=None: (jax.tree.map(lambda x: x * state.scale, updates), state))


def find(opt_state: Any) -> Plateau | None:
    """Finds the plateau schedule's part of an optimizer's state; None for other schedules."""
    return next(filter(_is_plateau, jax.tree.leaves(opt_state, is_leaf=_is_plateau)), None)


def scale(opt_state: Any) -> float:
    """Returns the factor of the learning rate; 1 for other schedules."""
    plateau = find(opt_state)
    return 1.0 if plateau is None else float(plateau.scale)


def after_validation(opt_state: Any, loss: float, rule: Rule) -> Any:
    """Returns the optimizer's state after a validation with this loss, with the layout unchanged."""
    def updated(leaf: Any) -> Any:
        if not _is_plateau(leaf):
            return leaf
        new, lowest = np.float32(loss), np.float32(leaf.lowest)
        factor = np.float32(leaf.scale) * np.float32(1 if new < lowest else rule.factor)
        return Plateau(jax.device_put(factor, leaf.scale.sharding),
                       jax.device_put(min(new, lowest), leaf.lowest.sharding))

    return jax.tree.map(updated, opt_state, is_leaf=_is_plateau)


def reason_to_end(opt_state: Any, rule: Rule) -> str:
    """Says why training ends, as `Rule.reason_to_end`: the learning rate has fallen far enough."""
    factor = scale(opt_state)
    return "" if factor >= rule.final else (
        f"the learning rate is {factor:.3g} of its peak, below optimizer.schedule.final ({rule.final:.3g})")


def _is_plateau(node: Any) -> bool:
    return isinstance(node, Plateau)


def check(config: Config, last: bool) -> None:
    """Raises UserError if training would end before the last stage."""
    if config.final and not last:
        raise UserError(f"optimizer.schedule.final is {config.final:g}, which ends training before the last stage "
                        "begins; leave it to the last stage, and set it to 0 in the others")


DEFINITION = ScheduleDef(constant, config=Config, check=check,
                         rule=lambda config: Rule(config.factor, config.final, after_validation, reason_to_end))
