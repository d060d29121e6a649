"""SGD that averages its parameters once validation stops improving: NT-ASGD (Merity et al., 2018), with the
average of Polyak and Juditsky (1992).

After the first validation whose loss is above the lowest of all but the last `nonmonotone` ones, the average of the
parameters, and of those after every later update, is used wherever `optimizer.ema` would be: in validation, evaluation
and conversion. Until then the average equals the parameters. Training goes on at the same rate.

With `averages=always`, all parameters after an update are averaged, and that validation ends training. This is the
second training of AWD-LSTM, from the best checkpoint of the first ("fine-tuning" in the paper). The validation before
its first step does not count.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.optimizers import sgd
from lmrep.optimizers.base import Averaged, OptimizerDef
from lmrep.optimizers.schedules import Rule


@dataclass(frozen=True)
class Config(sgd.Config):
    """The settings of SGD, and the trigger. With `ema`, that average is kept instead."""

    nonmonotone: int = setting(5, "last validations that the current one is not compared with", at_least=1)
    averages: str = setting("triggered", "which parameters are averaged: triggered, from that validation on; or "
                            "always, all, and that validation ends training", choices=("triggered", "always"))


class Trigger(NamedTuple):
    """The part of the optimizer's state that validations change."""

    # i32[], 1 once the average is of more than the last parameters; with averages=always 1, and 2 after the trigger
    averages: Array
    lowest: Array  # f32[], the lowest loss of all validations but the last `nonmonotone`; infinite before there are any
    recent: tuple[Array, ...]  # f32[] each, losses of the last `nonmonotone` validations, the newest at the end
    rule: Any  # the state of the optimizer itself


def direction(config: Config, specs: Tree) -> optax.GradientTransformation:
    """Returns SGD's direction."""
    return sgd.direction(config, specs)


def average(config: Config, rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Adds the average to `rule`. After the trigger, `Averaged.count` is the number of averaged parameters."""
    rule = optax.with_extra_args_support(rule)

    def init(params: Tree) -> Averaged:
        infinite = [jnp.float32(jnp.inf) for _ in range(1 + config.nonmonotone)]
        trigger = Trigger(jnp.int32(config.averages == "always"), infinite[0], tuple(infinite[1:]), rule.init(params))
        return Averaged(jnp.int32(0), jax.tree.map(jnp.array, params), trigger)

    def update(grads: Tree, state: Averaged, params: Tree, **extra: Any) -> tuple[Tree, Averaged]:
        updates, inner = rule.update(grads, state.rule.rule, params, **extra)
        averages = state.rule.averages > 0
        count = jnp.where(averages, state.count + 1, 1)

        def move(old: Array, param: Array, update: Array) -> Array:
            followed = jnp.where(state.count == 0, param, old) + update  # until the trigger, as the parameter itself
            return jnp.where(averages, old + (param + update - old) / count, followed)

        average = jax.tree.map(move, state.average, params, updates)
        return updates, Averaged(count, average, state.rule._replace(rule=inner))

    return optax.GradientTransformationExtraArgs(init, update)


def after_validation(opt_state: Any, loss: float, rule: Rule) -> Any:
    """Returns the optimizer's state after a validation with this loss, with the layout unchanged."""
    if rule.reason_to_end and not int(opt_state.count):
        return opt_state
    trigger, loss = opt_state.rule, np.float32(loss)
    triggered = 2 if rule.reason_to_end else 1
    averages = triggered if loss > np.float32(trigger.lowest) else int(trigger.averages)
    values = {"averages": np.int32(averages),
              "lowest": np.minimum(np.float32(trigger.lowest), np.float32(trigger.recent[0])),
              "recent": (*map(np.float32, trigger.recent[1:]), loss)}
    layout = jax.tree.map(lambda old: old.sharding, {name: getattr(trigger, name) for name in values})
    return opt_state._replace(rule=trigger._replace(**jax.device_put(values, layout)))


def reason_to_end(opt_state: Any, rule: Rule) -> str:
    """Says why training ends, as `Rule.reason_to_end`: at the trigger, with averages=always."""
    return "" if int(opt_state.rule.averages) < 2 else (
        f"the validation loss is above the lowest of all but the {len(opt_state.rule.recent)} validations before it "
        "(optimizer.averages=always)")


def check(config: Config) -> None:
    """Raises UserError where another average is kept."""
    if config.ema and config.averages == "always":
        raise UserError(f"optimizer.ema is {config.ema}, and optimizer.averages is always; an optimizer keeps one "
                        "average: set ema to 0, or averages to triggered")


DEFINITION = OptimizerDef(
    direction, config=Config, average=average, check=check,
    rule=lambda config: Rule(after_validation=after_validation,
                             reason_to_end=reason_to_end if config.averages == "always" else None))
