"""Optimizers as optax chains, one file each, and schedules of the learning rate, looked up by name in `OPTIMIZERS` and
`SCHEDULES`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.config.record import choose, read, suggestion
from lmrep.core.components import check_build, check_built, component_table, described, faults_of
from lmrep.core.errors import UserError
from lmrep.core.messages import shown
from lmrep.core.params import Array, Tree
from lmrep.optimizers import (
    adafactor,
    adagrad,
    adamw,
    lamb,
    lion,
    muon,
    nt_asgd,
    plateau,
    schedules,
    sgd,
    stable_adamw,
)
from lmrep.optimizers.base import (
    SKIP,
    OptimizerConfig,
    OptimizerDef,
    averaged,
    averaging,
    check_rule,
    clip,
    learning_rate,
    multiplied,
    scaled,
    state_shardings,
    weight_decay,
)
from lmrep.optimizers.parameters import gradient_factors, layer_factors, matches, multipliers
from lmrep.optimizers.schedules import Rule, ScheduleConfig, ScheduleDef, warmup_steps

__all__ = ["DEFAULT_RECIPE", "OPTIMIZERS", "SCHEDULES", "OptimizerConfig", "OptimizerDef", "Rule", "ScheduleConfig",
           "ScheduleDef", "averaged", "build", "check", "rate_factors", "read_changes", "read_config", "recipe",
           "recipe_rows", "schedule", "state_shardings", "validation_rule", "warmup_steps"]

OPTIMIZERS: dict[str, OptimizerDef] = component_table(OptimizerDef, {
    "adamw": adamw.DEFINITION,
    "lamb": lamb.DEFINITION,
    "adafactor": adafactor.DEFINITION,
    "adagrad": adagrad.DEFINITION,
    "sgd": sgd.DEFINITION,
    "nt_asgd": nt_asgd.DEFINITION,
    "stable_adamw": stable_adamw.DEFINITION,
    "lion": lion.DEFINITION,
    "muon": muon.DEFINITION,
})
SCHEDULES: dict[str, ScheduleDef] = component_table(ScheduleDef, {
    "linear": ScheduleDef(schedules.linear, config=schedules.DecayConfig),
    "constant": ScheduleDef(schedules.constant),
    "polynomial": ScheduleDef(schedules.polynomial, config=schedules.PolynomialConfig),
    "cosine": ScheduleDef(schedules.cosine, config=schedules.DecayConfig),
    "inverse_sqrt": ScheduleDef(schedules.inverse_sqrt, config=schedules.CooldownConfig, after_warmup=True),
    "warmup_stable_decay": ScheduleDef(schedules.warmup_stable_decay, config=schedules.StableConfig),
    "slanted_triangular": ScheduleDef(schedules.slanted_triangular, config=schedules.SlantedTriangularConfig,
                                      check=schedules.check_slanted_triangular),
    "plateau": plateau.DEFINITION,
})
DEFAULT_RECIPE = "adamw"  # for pages that set an optimizer's numbers themselves


def recipe_rows() -> dict[str, str]:
    """Returns {a page's choice `optimizer=NAME`: the row that it names, or whose recipe it names}."""
    return {name: name for name in OPTIMIZERS} | {
        recipe: name for name, row in OPTIMIZERS.items() for recipe in row.recipes}


def recipe(choice: str) -> OptimizerConfig:
    """Returns the settings of a page's choice `optimizer=NAME`: those of the recipe, or the defaults of the row. Raises
    UserError if no row has it."""
    name = choose(recipe_rows(), choice, "optimizer")
    fields = OPTIMIZERS[name].recipes.get(choice, {})
    return read_config({"name": name, **fields}, f"{_described(name)}: the recipe {choice} of")


def read_config(fields: Mapping[str, Any], where: str = "optimizer") -> OptimizerConfig:
    """Reads the settings of an optimizer and its schedule into the config classes of their rows. Raises UserError as
    `lmrep.config.record.read`."""
    if isinstance(fields, Mapping) and "schedule" in fields:
        fields = {**fields, "schedule": _read_row(SCHEDULES, fields["schedule"], f"{where}.schedule")}
    return _read_row(OPTIMIZERS, fields, where)


def _read_row(rows: Mapping[str, Any], fields: Any, where: str) -> Any:
    """Reads `fields` into the config class of the row that they name."""
    fields = _named(rows, fields, where)
    name, row = fields["name"], rows[fields["name"]]
    kind, base, code = (("optimizer", OptimizerConfig, row.direction) if isinstance(row, OptimizerDef) else
                        ("schedule", ScheduleConfig, row.decay))
    if not issubclass(row.config, base):
        raise UserError(f"{described(kind, name, code)}: its config {row.config.__name__} is no subclass of "
                        f"{base.__name__}, which has the settings of all; correct this component")
    known = _settings(row)
    for key in fields:
        if key not in known:
            raise UserError(f"{where} {name!r} has no field {key!r}"
                            f"{suggestion(key, known) or '; it has ' + ', '.join(known)}")
    return read(row.config, fields, where)


def _named(rows: Mapping[str, Any], fields: Any, where: str) -> dict[str, Any]:
    """Returns the fields with the name of a row, by default the first. Raises UserError if there is no such row."""
    if not isinstance(fields, Mapping):
        raise UserError(f"{where} is {shown(fields)}; expected a mapping")
    fields = {"name": next(iter(rows)), **fields}
    choose(rows, fields["name"], f"{where}.name")
    return fields


def _settings(row: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(row.config)]


def completed(fields: Mapping[str, Any], where: str = "optimizer") -> dict[str, Any]:
    """Returns all settings of an optimizer and its schedule: `fields`, and defaults for what they lack. Drops settings
    that only other rows have, which a change of `name` leaves behind. Raises UserError for an unknown row."""
    def of_row(rows: Mapping[str, Any], fields: Any, where: str) -> dict[str, Any]:
        fields = _named(rows, fields, where)
        row = rows[fields["name"]]
        others = {name for other in rows.values() for name in _settings(other)}.difference(_settings(row))
        return dataclasses.asdict(row.config(fields["name"])) | {
            key: value for key, value in fields.items() if key not in others}

    fields = of_row(OPTIMIZERS, fields, where)
    return fields | {"schedule": of_row(SCHEDULES, fields["schedule"], f"{where}.schedule")}


def read_changes(config: OptimizerConfig, changes: Mapping[str, Any], where: str) -> OptimizerConfig:
    """Returns the settings with some changed. Another optimizer or schedule keeps the settings that it has too."""
    def changed(old: dict[str, Any], new: Any, table: Mapping[str, Any] | None = None) -> Any:
        if not isinstance(new, Mapping):
            return new
        row = table and table.get(new.get("name", old["name"]))
        known = _settings(row) if row else old
        return {key: value for key, value in old.items() if key in known} | new

    old = dataclasses.asdict(config)
    nested = {key: changed(old[key], value, SCHEDULES if key == "schedule" else None)
              for key, value in changes.items() if isinstance(old.get(key), dict)}
    return read_config(changed(old, {**changes, **nested}, OPTIMIZERS), where)


def check(config: OptimizerConfig, total_steps: int, last: bool = True) -> None:
    """Raises UserError if the settings of an optimizer or its schedule contradict each other or `total_steps`, or if
    training would end before the `last` stage."""
    OPTIMIZERS[config.name].check(config)
    rate = config.schedule
    SCHEDULES[rate.name].check(rate, last)
    of_optimizer = OPTIMIZERS[config.name].rule(config)
    if of_optimizer and of_optimizer.reason_to_end and not last:
        raise UserError(f"optimizer {config.name!r} as configured ends training before the last stage begins; leave "
                        "that to the last stage, and set optimizer.averages=triggered in the others")
    if SCHEDULES[rate.name].rule(rate) and of_optimizer:
        raise UserError(f"optimizer {config.name!r} and optimizer.schedule {rate.name!r} both follow the validation "
                        "loss; choose another schedule")
    if rate.warmup and rate.warmup_fraction:
        raise UserError(f"optimizer.schedule has both warmup={rate.warmup} and warmup_fraction="
                        f"{rate.warmup_fraction:g}; set one of them to 0")
    if rate.warmup > total_steps:
        raise UserError(f"optimizer.schedule.warmup is {rate.warmup}, more than the {total_steps} steps of the run; "
                        f"set it to {total_steps:,} at most, or to 0 beside optimizer.schedule.warmup_fraction")


def validation_rule(config: OptimizerConfig) -> Rule | None:
    """Returns how a validation changes the learning rate or the average; None: it does not."""
    of_rate = SCHEDULES[config.schedule.name].rule(config.schedule)
    return of_rate or (None if config.ema else OPTIMIZERS[config.name].rule(config))


def schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Returns the learning rate f32[] before multipliers, as a function of the number of updates so far.

    The first update is at step 0. After `total_steps` the rate stays at its last value.

    Raises:
      UserError: as `check`; or the schedule returns no scalar.
    """
    check(config, total_steps)
    shape, peak, row = config.schedule, config.learning_rate, SCHEDULES[config.schedule.name]
    warmup, both = warmup_steps(shape, total_steps), shape.decay_from == "both"
    start, unit = warmup if shape.decay_from == "warmup" or row.after_warmup else 0, max(1, warmup)
    what = described("schedule", shape.name, row.decay)
    check_build(what, row.decay, ("config", "peak", "steps", "warmup"), "decay")
    with faults_of(what, row.decay):
        decay = row.decay(shape, peak, max(1, total_steps - start), unit)
        rate = jax.eval_shape(lambda step: jnp.asarray(decay(step)), jax.ShapeDtypeStruct((), jnp.int32))
    if rate.shape or not jnp.issubdtype(rate.dtype, jnp.floating):
        raise UserError(f"{what}: its rate is {rate.dtype}{list(rate.shape)}; expected float32[], a scalar; correct "
                        "this component")

    def ramp(step: Array, top: Array | float) -> Array:  # optax's loses precision at the first small rates
        return top * (shape.warmup_from + (1 - shape.warmup_from) * step / unit)

    return lambda step: jnp.where(
        step < warmup, ramp(step, decay(step - start) if both else peak), decay(step - start))


def build(config: OptimizerConfig, specs: Tree, total_steps: int) -> optax.GradientTransformation:
    """Builds the optimizer of the parameters of `specs` for `total_steps` updates.

    Its `update(gradients, state, params)` takes and returns trees with the structure of `specs`; the caller adds the
    updates to the parameters.

    Raises:
      UserError: as `check`; a pattern matches no parameter; or the update rule breaks its contract.
    """
    rate, row, what = schedule(config, total_steps), OPTIMIZERS[config.name], _described(config.name)
    skip = matches(config.decay_skip, specs, "optimizer.decay_skip", optional=SKIP)
    decayed = {path: ~skipped for path, skipped in skip.items()}
    check_build(what, row.direction, ("config", "specs"), "direction")
    with faults_of(what, row.direction):
        direction = row.direction(config, specs)
        rescale = [row.rescale(config, specs, decayed)] if row.rescale else []
        for name, rule in zip(("direction", "rescale"), (direction, *rescale), strict=False):
            check_built(what, rule, optax.GradientTransformation, name)
            check_rule(rule, specs, what)
    of_gradient = config.layer_decay_of == "gradient"
    rule = optax.chain(
        clip(config.clip, config.gradient_scale) if config.clip else optax.scale(config.gradient_scale),
        *([scaled(gradient_factors(config.layer_decay, specs))] if of_gradient else []),
        direction,
        weight_decay(config.weight_decay, decayed),
        *rescale,
        learning_rate(rate),
        *([plateau.scale_by_plateau()] if SCHEDULES[config.schedule.name].rule(config.schedule) else []),
    )
    rule = multiplied(rule, rate_factors(config, specs))
    if config.ema:
        return averaging(rule, config.ema)
    if row.average is None:
        return rule
    with faults_of(what, row.average):
        rule = row.average(config, rule)
        check_built(what, rule, optax.GradientTransformation, "average")
        check_rule(rule, specs, what)
    return rule


def rate_factors(config: OptimizerConfig, specs: Tree) -> dict[str, np.ndarray]:
    """Returns {path: the factor of the learning rate, f32[]; f32[l] if the parameter is stacked}, the product of
    multipliers and layer decay. Raises UserError if a pattern matches no parameter."""
    decay = 1.0 if config.layer_decay_of == "gradient" else config.layer_decay
    decays = layer_factors(decay, specs, 1 if config.layer_decay_of == "groups" else 2)
    return {path: factor * decays[path] for path, factor in multipliers(config.multipliers, specs).items()}


def _described(name: str) -> str:
    return described("optimizer", name, OPTIMIZERS[name].direction)
