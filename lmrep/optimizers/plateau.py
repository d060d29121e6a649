"""A learning rate that falls when validation does not improve, as for SGD in recurrent translation models (Luong et
al., 2015), and where such a run ends.

The factor of the rate is in the optimizer's state, so that it is saved and restored with the moments.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.optimizers.schedules import Rule, ScheduleConfig, ScheduleDef, constant


class Plateau(NamedTuple):
    """The optimizer's state."""

    scale: Array  # f32[], factor of the learning rate
    lowest: Array  # f32[], the lowest validation loss so far; infinite before the first


def scale_by_plateau() -> optax.GradientTransformation:
    """Multiplies updates by `Plateau.scale`."""
    return optax.GradientTransformation(
        lambda params: Plateau(jnp.float32(1), jnp.float32(jnp.inf)),
        lambda updates, state, params=None: (jax.tree.map(lambda x: x * state.scale, updates), state))


def find(opt_state: Any) -> Plateau | None:
    """The part of an optimizer's state; None where its schedule is another one."""
    return next(filter(_is_plateau, jax.tree.leaves(opt_state, is_leaf=_is_plateau)), None)


def scale(opt_state: Any) -> float:
    """The factor of the learning rate; 1 for other schedules."""
    found = find(opt_state)
    return 1.0 if found is None else float(found.scale)


def after_validation(opt_state: Any, loss: float, rule: Rule) -> Any:
    """The optimizer's state after a validation, laid out as before."""
    def updated(leaf: Any) -> Any:
        if not _is_plateau(leaf):
            return leaf
        new, lowest = np.float32(loss), np.float32(leaf.lowest)
        factor = np.float32(leaf.scale) * np.float32(1 if new < lowest else rule.factor)
        return Plateau(jax.device_put(factor, leaf.scale.sharding),
                       jax.device_put(min(new, lowest), leaf.lowest.sharding))

    return jax.tree.map(updated, opt_state, is_leaf=_is_plateau)


def is_over(opt_state: Any, rule: Rule | None) -> bool:
    """Whether training ends here."""
    return rule is not None and scale(opt_state) < rule.final


def _is_plateau(node: Any) -> bool:
    return isinstance(node, Plateau)


def check(config: ScheduleConfig, last: bool) -> None:
    """Raises UserError if training would end before the last stage."""
    if config.final and not last:
        raise UserError(f"optimizer.schedule.final is {config.final:g}, which ends training before the last stage "
                        "begins; leave it to the last stage, and set it to 0 in the others")


DEFINITION = ScheduleDef(constant, check=check, rule=lambda config: Rule(config.factor, config.final))
