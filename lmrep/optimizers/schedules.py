"""Learning rates as functions of the step: a linear warm-up, then a decay, a row of SCHEDULES.

The published schedules are settings of one record; `r` is the learning rate, `w` the warm-up steps, `n` all steps:

| recipe | settings | rate at step s, counted from 0 |
| --- | --- | --- |
| BERT | linear, decay_from="start" | r s/w for s < w, then r (1 - s/n): it drops a little as the warm-up ends |
| ELECTRA | linear, decay_from="both" | r min(1, s/w) (1 - s/n) |
| RoBERTa | linear | r s/w, then r (n - s)/(n - w) |
| Vaswani et al. | inverse_sqrt, r = (d w)^-1/2 | r min(s/w, (w/s)^1/2) |
| T5 | inverse_sqrt, warmup_from=1, r = 0.01, w = 10000 | 1 / max(s, w)^1/2 |
| XLNet | polynomial or cosine, final=0.001 | as RoBERTa's, down to r/1000 |
| MiniCPM, ModernBERT | warmup_stable_decay | r s/w, then r, then down to 0 in the last tenth |
| ULMFiT | slanted_triangular, cut = floor(n/10), ratio = 32 | r/32 at 0, r at step cut, r/32 at 10 cut |
| CoVe | plateau, r = 1, factor=0.5, final=0.03 | r, halved where validation is not the best so far |
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.params import Array


@dataclass(frozen=True)
class ScheduleConfig:
    """The settings that all schedules have; one with more adds them in a subclass. The peak of the learning rate is
    `optimizer.learning_rate`."""

    name: str = setting(MISSING, "shape of the decay after warm-up, a row of SCHEDULES")
    warmup: int = setting(0, "steps of linear warm-up", at_least=0)
    warmup_fraction: float = setting(0.0, "warm-up as a fraction of all steps, in place of `warmup`", at_least=0,
                                    at_most=1)
    warmup_from: float = setting(0.0, "where the warm-up begins, as a fraction of the peak", at_least=0, at_most=1)
    decay_from: str = setting("warmup", "the step from which the decay counts: warmup, the end of the warm-up; start, "
                              "step 0, but only the steps after the warm-up decay (BERT); both, step 0, warm-up "
                              "included (ELECTRA). inverse_sqrt always uses warmup",
                              choices=("warmup", "start", "both"))


@dataclass(frozen=True)
class DecayConfig(ScheduleConfig):
    """The settings of a decay to a fraction of the peak."""

    final: float = setting(0.0, "where the decay ends, as a fraction of the peak", at_least=0, at_most=1)


@dataclass(frozen=True)
class PolynomialConfig(DecayConfig):
    """The settings of the polynomial decay."""

    power: float = setting(1.0, "exponent of the remaining fraction of the steps", above=0)


@dataclass(frozen=True)
class CooldownConfig(DecayConfig):
    """The settings of a cool-down at the end."""

    cooldown_fraction: float = setting(0.0, "the last part of the decay's steps, in which the rate falls to `final`",
                                       at_least=0, at_most=1)
    cooldown: str = setting("linear", "shape of the fall: linear; sqrt, 1 - sqrt(part of the cool-down that is over) "
                            "(Hägele et al., 2024); cosine", choices=("linear", "sqrt", "cosine"))
    cooldown_steps: int = setting(0, "the steps of the fall, in place of `cooldown_fraction`", at_least=0)


@dataclass(frozen=True)
class StableConfig(CooldownConfig):
    """The settings of the stable rate, which differ by a default."""

    cooldown_fraction: float = setting(0.1, "the last part of the decay's steps, in which the rate falls to `final`",
                                       at_least=0, at_most=1)


@dataclass(frozen=True)
class SlantedTriangularConfig(ScheduleConfig):
    """The settings of the slanted triangle. fastai's `use_clr=(div, cut_div)` is ratio=div and cut_fraction=1/cut_div.
    """

    cut_fraction: float = setting(0.1, "the part of all steps in which the rate rises", above=0, below=1)
    ratio: float = setting(32.0, "the peak divided by the first rate, and by the last", at_least=1)


class Rule(NamedTuple):
    """The effect of validations on the optimizer's state, and whether they end training."""

    factor: float = 1.0  # the rate is multiplied by it where the loss is not below the lowest so far
    final: float = 0.0  # training ends when the rate is below this fraction of its peak; 0: it does not
    # (the optimizer's state, the validation loss, this rule) -> the state after the validation, with the same layout
    after_validation: Callable[[Any, float, "Rule"], Any] | None = None
    # (the optimizer's state, this rule) -> why training ends; "" if it goes on. None: it always goes on
    reason_to_end: Callable[[Any, "Rule"], str] | None = None


@row
class ScheduleDef(NamedTuple):
    """A row of SCHEDULES."""

    # (config, peak, steps, warmup) -> the rate f32[] as a function of the decay's step, from 0 to `steps`; `warmup` is
    # the number of steps of the warm-up, at least 1
    decay: Callable[[Any, float, int, int], optax.Schedule]
    config: type[ScheduleConfig] = ScheduleConfig  # its settings; a subclass adds those that not all have
    # (config, whether its stage is the last of the run), which raises UserError if settings do not fit
    check: Callable[[Any, bool], None] = lambda config, last: None
    # (config) -> how validations change the rate, by a factor in the optimizer's state; None: they do not
    rule: Callable[[Any], Rule | None] = lambda config: None
    after_warmup: bool = False  # whether the decay always begins at the end of the warm-up, whatever `decay_from` is


def warmup_steps(config: ScheduleConfig, total_steps: int) -> int:
    """Computes the number of warm-up steps; a fraction of all steps is rounded down, as in BERT's fine-tuning."""
    return config.warmup or int(config.warmup_fraction * total_steps)


def constant(config: ScheduleConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Stays at the peak."""
    return optax.constant_schedule(peak)


def linear(config: DecayConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Decays linearly to `final` times the peak."""
    return optax.linear_schedule(peak, config.final * peak, steps)


def polynomial(config: PolynomialConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Decays to `final` times the peak as a power of the remaining fraction of the steps."""
    return optax.polynomial_schedule(peak, config.final * peak, config.power, steps)


def cosine(config: DecayConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Decays to `final` times the peak by half a period of a cosine."""
    return optax.cosine_decay_schedule(peak, steps, alpha=config.final)


def warmup_stable_decay(config: CooldownConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Stays at the peak until the cool-down (WSD; Hu et al., 2024), also called trapezoidal."""
    return cooled(config, lambda step: peak, steps)


def inverse_sqrt(config: CooldownConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Decays as 1 / sqrt(1 + step / warmup) until the cool-down, if there is one (Zhai et al., 2022)."""
    return cooled(config, lambda step: peak * jnp.sqrt(warmup / (warmup + jnp.maximum(step, 0))), steps)


def cooled(config: CooldownConfig, rate: optax.Schedule, steps: int) -> optax.Schedule:
    """Multiplies a rate by a factor that falls from 1 to `final` in the cool-down, the last of `steps`."""
    fall = config.cooldown_steps or config.cooldown_fraction * steps
    if not fall:
        return rate

    def factor(step: Array) -> Array:
        left = jnp.clip((steps - step) / fall, 0.0, 1.0)
        shape = {"linear": left, "sqrt": 1 - jnp.sqrt(1 - left), "cosine": (1 - jnp.cos(jnp.pi * left)) / 2}
        return config.final + (1 - config.final) * shape[config.cooldown]

    return lambda step: rate(step) * factor(step)


def slanted_triangular(config: SlantedTriangularConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Rises linearly from peak / ratio to the peak, and falls linearly to peak / ratio (Howard and Ruder, 2018,
    equation 3).

    The rise has cut = floor(steps * cut_fraction) steps, at least 1, and the fall cut * (1 / cut_fraction - 1). Where
    the two do not make up all steps, the formula goes below peak / ratio, even below 0; here the rate stays at peak /
    ratio.
    """
    cut = max(1, math.floor(steps * config.cut_fraction + 1e-9))  # 0.29 * 100 is below 29 in floating point
    fall = cut * (1 / config.cut_fraction - 1)

    def rate(step: Array) -> Array:
        p = jnp.where(step < cut, step / cut, jnp.maximum(0.0, 1 - (step - cut) / fall))
        return peak * (1 + p * (config.ratio - 1)) / config.ratio

    return rate


def check_slanted_triangular(config: SlantedTriangularConfig, last: bool) -> None:
    """Raises UserError if a warm-up is set too."""
    if config.warmup or config.warmup_fraction:
        raise UserError(f"optimizer.schedule {config.name!r} rises for cut_fraction={config.cut_fraction:g} of all "
                        "steps, and has no other warm-up; set optimizer.schedule.warmup and "
                        "optimizer.schedule.warmup_fraction to 0")
