"""Learning rates as functions of the step: a linear warm-up, then one of six decays.

The published schedules are settings of one record; `r` is the learning rate, `w` the warm-up steps, `n` all steps:

| recipe | settings | rate at step s, counted from 0 |
| --- | --- | --- |
| BERT | linear, decay_from="start" | r s/w for s < w, then r (1 - s/n): it drops a little as the warm-up ends |
| ELECTRA | linear, decay_from="both" | r min(1, s/w) (1 - s/n) |
| RoBERTa | linear | r s/w, then r (n - s)/(n - w) |
| Vaswani et al. | inverse_sqrt, r = (d w)^-1/2 | r min(s/w, (w/s)^1/2) |
| T5 | inverse_sqrt, warmup_from=1, r = 0.01, w = 10000 | 1 / max(s, w)^1/2 |
| XLNet | polynomial or cosine, final=0.001 | as RoBERTa's, down to r/1000 |
| ULMFiT | linear, warmup_fraction=0.1, warmup_from=final=1/32 | slanted triangle |
| CoVe | plateau, r = 1, factor=0.5, final=0.03 | r, halved where validation is not the best so far |
"""

from dataclasses import dataclass

import jax.numpy as jnp
import optax

from lmrep.config.record import choose, setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.training.plateau import Rule


@dataclass(frozen=True)
class Config:
    """The shape of the learning rate over a run; its peak is `optimizer.learning_rate`."""

    name: str = setting("linear", "shape of the decay after warm-up",
                        choices=("constant", "linear", "polynomial", "cosine", "inverse_sqrt", "plateau"))
    warmup: int = setting(0, "steps of linear warm-up", at_least=0)
    warmup_fraction: float = setting(0.0, "warm-up as a fraction of all steps, in place of `warmup`", at_least=0,
                                    at_most=1)
    warmup_from: float = setting(0.0, "where the warm-up begins, as a fraction of the peak", at_least=0, at_most=1)
    decay_from: str = setting("warmup", "the step from which the decay counts: warmup, the end of the warm-up; start, "
                              "step 0, but only the steps after the warm-up decay (BERT); both, step 0, warm-up "
                              "included (ELECTRA). inverse_sqrt always uses warmup",
                              choices=("warmup", "start", "both"))
    power: float = setting(1.0, "exponent of the polynomial decay", above=0)
    final: float = setting(0.0, "where linear, polynomial and cosine end, as a fraction of the peak; plateau: training "
                          "ends when the rate is below it", at_least=0, at_most=1)
    factor: float = setting(0.5, "plateau: the rate is multiplied by it after each validation whose loss is not below "
                           "the lowest so far", above=0, below=1)


def warmup_steps(config: Config, total_steps: int) -> int:
    """The length of the warm-up; a fraction of all steps is rounded down, as in BERT's fine-tuning."""
    return config.warmup or int(config.warmup_fraction * total_steps)


def check(config: Config, total_steps: int, last: bool = True) -> None:
    """Raises UserError if the fields contradict each other or `total_steps`, or if training would end before the `last`
    stage."""
    if config.name == "plateau" and config.final and not last:
        raise UserError(f"optimizer.schedule.final is {config.final:g}, which ends training before the last stage "
                        "begins; leave it to the last stage, and set it to 0 in the others")
    if config.warmup and config.warmup_fraction:
        raise UserError(f"optimizer.schedule has both warmup={config.warmup} and warmup_fraction="
                        f"{config.warmup_fraction:g}; set one of them to 0")
    if config.warmup > total_steps:
        raise UserError(f"optimizer.schedule.warmup is {config.warmup}, more than the {total_steps} steps of the run; "
                        f"set it to {total_steps:,} at most, or to 0 beside optimizer.schedule.warmup_fraction")


def plateau_rule(config: Config) -> Rule | None:
    """What a validation does to the rate; None for other schedules."""
    return Rule(config.factor, config.final) if config.name == "plateau" else None


def build(config: Config, learning_rate: float, total_steps: int) -> optax.Schedule:
    """The rate f32[] as a function of the number of updates made so far; the first update is at step 0.

    After `total_steps` the rate stays at its last value. Raises UserError as `check` does.
    """
    check(config, total_steps)
    warmup = warmup_steps(config, total_steps)
    start = warmup if config.decay_from == "warmup" or config.name == "inverse_sqrt" else 0
    peak, end, steps, unit = learning_rate, config.final * learning_rate, max(1, total_steps - start), max(1, warmup)
    decays = {
        "constant": optax.constant_schedule(peak),
        "plateau": optax.constant_schedule(peak),  # times `Plateau.scale`, which is in the optimizer's state
        "linear": optax.linear_schedule(peak, end, steps),
        "polynomial": optax.polynomial_schedule(peak, end, config.power, steps),
        "cosine": optax.cosine_decay_schedule(peak, steps, alpha=config.final),
        "inverse_sqrt": lambda step: peak * jnp.sqrt(unit / (unit + jnp.maximum(step, 0))),
    }
    decay = choose(decays, config.name, "schedule.name")

    def ramp(step: Array, top: Array | float) -> Array:  # optax's loses precision at the first small rates
        return top * (config.warmup_from + (1 - config.warmup_from) * step / unit)

    both = config.decay_from == "both"
    return lambda step: jnp.where(
        step < warmup, ramp(step, decay(step - start) if both else peak), decay(step - start))
