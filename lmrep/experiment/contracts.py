"""Checks that components keep their contracts, by shapes alone: before data are prepared, and before anything is
written. A component that does not would otherwise train on a wrong loss without an error.

Rows are checked by their names; objectives and networks (`network_contracts`) are traced once with `jax.eval_shape`, on
two examples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from lmrep.config.record import suggestion
from lmrep.core import params as P
from lmrep.core.components import check_build, check_built, described, faults_of, type_of
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import RULES
from lmrep.data.formats import FORMATS, batch_struct
from lmrep.data.formats.base import BACKWARD, FIELDS, PLAN_ARGUMENTS
from lmrep.data.records import FIELDS as RECORD_FIELDS
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.experiment.record import ALL_FORMATS, ALL_OBJECTIVES
from lmrep.metrics import COMMON, UNIGRAM_LOSS, Metric, baseline_names
from lmrep.objectives.base import Batch, EvaluationKeys, Keys, Metrics, Objective
from lmrep.objectives.outputs import NETWORK, checked_loss
from lmrep.objectives.uses import HeldOut
from lmrep.tasks import TASKS
from lmrep.tasks.base import Outputs, Result, TaskDef, TextEncoder
from lmrep.training.state import specs_of

TARGETS = "targets"  # a figure of the training step, beside `COMMON`


def check_format(name: str, config: Any) -> None:
    """Checks that the row of a format with a config names batch fields that exist. Raises UserError."""
    if name in FORMATS:
        form = FORMATS[name]
        what = described("format", name, form.config)
        check_names(what, "its config lacks the field", ("duplicates",), fields_of(form.config), "")
        check_build(what, form.plan, PLAN_ARGUMENTS, "plan")
        with faults_of(what, form.config):
            check_names(what, "its row promises the batch field", form.fields(config),
                         [*FIELDS, *(BACKWARD + name for name in FIELDS)])


def checked_task(name: str, row: TaskDef) -> TaskDef:
    """Checks the row of a task, and returns it with functions that are checked when called. Raises UserError if it
    names fields of records, or metrics, that do not exist, and later if a function fails, its columns are not those of
    its units, or `resolve` or `score` returns something else than its row says."""
    what, config, metrics = described("task", name, row.objective.config), row.objective.config, row.objective.metrics
    check_names(what, "it reads the field", (*row.reads.inputs, *row.reads.targets, *row.reads.texts), RECORD_FIELDS)
    check_names(what, "it compares checkpoints by", filter(None, [row.best]), metrics)

    def guarded(function: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            with faults_of(what, config):
                return function(*arguments)

        return call

    def encode(c: Any, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
        encoded, declared = guarded(row.encode)(c, records, encoder), guarded(row.columns)(c)
        if not (isinstance(encoded, tuple) and len(encoded) == 2 and isinstance(encoded[0], Units)):
            raise UserError(f"{what}: encode returns {type_of(encoded)}; expected (Units, number of texts that "
                            "were too long); correct this component")
        units = encoded[0]
        if (examples := len(np.unique(units.example))) != len(records):
            raise UserError(f"{what}: encode gives units of {examples:,} examples for {len(records):,} records; "
                            "correct this component")
        declared = {column: field for column, field in declared.items() if not column.startswith("source/")}
        check_names(what, "encode gives the column", units.columns, declared, ", which `columns` does not declare")
        check_names(what, "columns declare the column", declared, units.columns, ", which encode does not give")
        for column, field in declared.items():
            shape, rows = units.columns[column].shape, len(units.tokens if field.axes[1] == "t" else units.example)
            if shape[:1] != (rows,) or len(shape) != len(field.axes) - 1:
                raise UserError(f"{what}: its column {column!r} has shape {shape}, and its axes are {field.axes!r}; "
                                f"expected {rows:,} values, one of each {'token' if field.axes[1] == 't' else 'unit'}; "
                                "correct this component")
        return encoded

    def score(c: Any, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
        result = guarded(row.score)(c, records, units, outputs)
        check_built(what, result, Result, "score")
        if len(result.predictions) != len(records):
            raise UserError(f"{what}: score gives {len(result.predictions):,} predictions for {len(records):,} "
                            "records; correct this component")
        check_names(what, "score measures", result.metrics, {*metrics, "loss"},
                     ", which its row does not declare; add it to the row's metrics")
        for metric in ("loss", row.best) if result.metrics else ():
            if metric and metric not in result.metrics:
                raise UserError(f"{what}: validation needs {metric!r}, which score does not measure; it measures "
                                f"{', '.join(result.metrics)}; correct this component")
        return result

    def resolve(c: Any, records: Sequence[Record]) -> Any:
        resolved = guarded(row.resolve)(c, records)
        check_built(what, resolved, config, "resolve")
        return resolved

    hooks = {name: guarded(getattr(row, name)) for name in ("check", "compare", "submission") if getattr(row, name)}
    texts = row.templates.texts
    templates = row.templates._replace(
        **{name: guarded(getattr(row.templates, name)) for name in ("reads", "convert", "unlabelled")},
        texts=texts and guarded(lambda c, record: [*texts(c, record)]))
    return row._replace(encode=encode, score=score, resolve=resolve, templates=templates, **hooks)


def checked_predict(objective: Objective, name: str) -> Objective:
    """Returns the objective of the task `name` with a `predict` that is checked when it is traced: it returns values of
    units and of tokens."""
    config = TASKS[name].objective.config
    what = described("task", name, config)

    def predict(params: Tree, batch: Batch) -> dict[str, dict[str, Array]]:
        with faults_of(what, config):
            outputs = objective.predict(params, batch)
        mapping = isinstance(outputs, Mapping)
        if not (mapping and outputs and {*outputs} <= {"units", "tokens"}):
            given = f"{{{', '.join(map(repr, outputs))}}}" if mapping else type_of(outputs)
            raise UserError(f"{what}: its predict returns {given}; expected {{'units': {{name: [b, n, ...]}}, 'tokens':"
                            " {name: [b, t, ...]}}, or one of the two; correct this component")
        for name, value in outputs.get("units", {}).items():
            if jnp.shape(value)[:2] != batch["unit"].shape:
                raise UserError(f"{what}: its predict returns {name!r} of units as {type_of(value)}; expected a value "
                                f"for each of {list(batch['unit'].shape)} units; correct this component")
        return outputs

    return objective._replace(predict=predict)


def fields_of(config: type) -> set[str]:
    """Returns the names of the fields of a config class."""
    return {field.name for field in dataclasses.fields(config)}


def check_names(what: str, problem: str, names: Any, known: Any, reason: str = ", which does not exist") -> None:
    """Raises UserError, "WHAT: PROBLEM 'NAME'REASON; correct this component", for the first name that is not known."""
    for name in names:
        if name not in known:
            near = suggestion(name, known) if reason else ""
            raise UserError(f"{what}: {problem} {name!r}{reason}; correct this component{near}")


def check_specs(what: str, specs: Tree) -> None:
    """Raises UserError where a parameter has not one logical axis for each dimension, one that no rule names, which
    would never be sharded, or no values; a table of tokens has none before the vocabulary is known."""
    if not isinstance(specs, Mapping):
        raise UserError(f"{what}: its specs are {type_of(specs)}; expected a nested dict of ParamSpec; correct this "
                        "component")
    for path, spec in P.flatten(specs).items():
        if not isinstance(spec, P.ParamSpec):
            raise UserError(f"{what}: its parameter {path} is {type_of(spec)}; expected ParamSpec(shape, axes, init); "
                            "correct this component")
        if len(spec.axes) != len(spec.shape):
            raise UserError(f"{what}: its parameter {path} has shape {spec.shape} and axes {spec.axes}; expected one "
                            "axis, or None, for each dimension; correct this component")
        check_names(what, f"its parameter {path} has the axis", filter(None, spec.axes), RULES)
        if any(not isinstance(size, int | np.integer) for size in spec.shape):
            raise UserError(f"{what}: its parameter {path} has shape {spec.shape}; expected integers; correct this "
                            "component")
        if any(size == 0 and axis != "vocab" for size, axis in zip(spec.shape, spec.axes, strict=True)):
            raise UserError(f"{what}: its parameter {path} has shape {spec.shape}, and so no values; correct this "
                            "component")


def check_objective(
    name: str, make: Callable[[], Objective], batch: Mapping[str, jax.ShapeDtypeStruct], metrics: Mapping[str, Metric],
    every: bool = True,
) -> set[str]:
    """Checks the row of an objective, and the objective against its row.

    Args:
      name: of the row.
      make: builds it.
      batch: shapes of a batch of its format.
      metrics: of its row.
      every: whether its loss must measure all metrics that are not optional; losses of tasks measure some.

    Returns:
      The names of the metrics that it measures on validation data.

    Raises:
      UserError: its row names a field or a metric that does not exist, its code fails, or its loss returns other
        metrics than its row or its `terms` name.
    """
    row = ALL_OBJECTIVES[name]
    what = described("objective", name, row.config)
    check_names(what, "its row names the field", (*row.loss_fields, *row.evaluation_fields), fields_of(row.config))
    for measure, metric in row.metrics.items():
        check_names(what, f"the baseline of {measure} is", baseline_names(metric), {*row.metrics, UNIGRAM_LOSS})
    with faults_of(what, row.config):
        objective = make()
        if objective.name != name:
            raise UserError(f"{what}: the name of its Objective is {objective.name!r}; give it that of its row")
        check_specs(what, objective.specs)
        (training, _), (measured, prepared) = (_traced(objective, batch, training, what) for training in (True, False))
        _check_held_out(objective, prepared, what)
    for measure in (*training, *measured):
        if measure not in metrics and not measure.startswith(NETWORK):
            raise UserError(f"{what}: its loss measures {measure!r}, which its row does not declare; add it to "
                            f"the row's metrics{suggestion(measure, metrics)}")
        if measure in COMMON or measure == TARGETS:
            raise UserError(f"{what}: its loss measures {measure!r}, the name of a figure of the trainer; rename it")
    for term in objective.terms:
        if term not in measured:
            raise UserError(f"{what}: its terms name {term!r}, which its loss does not measure on validation data"
                            f"; it measures {', '.join(measured) or 'nothing'}{suggestion(term, measured)}")
    missing = [measure for measure, metric in metrics.items() if not metric.optional and measure not in measured]
    if every and missing:
        raise UserError(f"{what}: its row declares {missing[0]!r}, which its loss does not measure on validation data"
                        "; return it, or declare it with optional=True where the config decides"
                        f"{suggestion(missing[0], measured)}")
    return set(measured)


def _traced(
    objective: Objective, batch: Mapping[str, jax.ShapeDtypeStruct], training: bool, what: str
) -> tuple[Metrics, Batch]:
    """Traces `loss`: (its metrics, the prepared batch), as shapes."""
    examples = len(batch["tokens"])

    def step(params: Tree, batch: Batch):
        key = jax.random.key(0)
        keys = (Keys if training else EvaluationKeys)(jax.random.split(key, examples), key)
        carry = objective.carry(examples)
        prepared = objective.prepare(keys, batch)
        if not isinstance(prepared, Mapping):
            raise UserError(f"{what}: its prepare returns {type_of(prepared)}; expected the batch, a dict; correct "
                            "this component")
        total, (pairs, carried) = checked_loss(objective.loss(params, prepared, key if training else None, carry))
        if jnp.shape(total) != ():
            raise UserError(f"{what}: its loss has shape {jnp.shape(total)}; expected a scalar, the sum over examples")
        if jax.tree.map(jnp.shape, carried) != jax.tree.map(jnp.shape, carry):
            raise UserError(f"{what}: its loss returns a carry of other shapes than it was given; correct this "
                            "component")
        for name, pair in pairs.items():
            if any(jnp.shape(value) != () for value in pair):
                raise UserError(f"{what}: its metric {name!r} has shapes {', '.join(str(jnp.shape(x)) for x in pair)}; "
                                "expected two scalars, a sum and a count")
        return pairs, prepared

    jaxpr, shapes = jax.make_jaxpr(step, return_shape=True)(P.abstract(specs_of(objective)), dict(batch))
    if beyond := _beyond(jaxpr.jaxpr):
        reason = " (units of an example come together where its Reads has grouped=True)" * (objective.name in TASKS)
        raise UserError(f"{what}: its prepare or loss reads entry {beyond[0]} of an array of shape {beyond[1]}, which "
                        f"does not exist{reason}; correct this component")
    return shapes


def _beyond(jaxpr: Jaxpr) -> tuple[int, tuple[int, ...]] | None:
    """Returns the first constant index beyond its array, in place of which JAX reads the nearest entry, and the shape
    of the array; None without one."""
    known = {}
    for eqn in jaxpr.eqns:
        values = [v.val if isinstance(v, Literal) else known.get(v) for v in eqn.invars]
        if eqn.primitive.name in ("lt", "add", "select_n") and all(value is not None for value in values):
            known[eqn.outvars[0]] = eqn.primitive.bind(*values, **eqn.params)  # how JAX counts from the end
        if eqn.primitive.name == "dynamic_slice":
            shape = eqn.invars[0].aval.shape
            for start, size, taken in zip(values[1:], shape, eqn.params["slice_sizes"], strict=True):
                if start is not None and not 0 <= start <= size - taken:
                    return int(start), shape
        for inner in jaxprs_in_params(eqn.params):
            if beyond := _beyond(inner):
                return beyond
    return None


def _check_held_out(objective: Objective, prepared: Batch, what: str) -> None:
    if objective.uses.held_out is None:
        return
    returned = jax.eval_shape(objective.uses.held_out, prepared)
    tokens, positions, targets = (getattr(returned, name, None) for name in HeldOut._fields)
    if not isinstance(returned, HeldOut) or tokens.ndim != 2 or positions.ndim != 2 or positions.shape != targets.shape:
        raise UserError(f"{what}: Uses.held_out returns {jax.tree.map(jnp.shape, returned)}; expected HeldOut of "
                        "tokens [b, t] and of positions and targets [b, m]; correct this component")


def check_plan(name: str, config: Any, length: int, plan: Any) -> None:
    """Checks that a plan of a format with a config gives the fields that the format promises. Raises UserError."""
    form = ALL_FORMATS[name]
    what = described("format", name, form.config)
    with faults_of(what, form.config):
        promised = batch_struct(form.fields(config), False, b=1, t=length)
        batch = P.flatten(plan.gather(np.array([-1]), plan.batch_length(np.array([-1]))))
    for field, struct in P.flatten(promised).items():
        if field not in batch:
            raise UserError(f"{what}: its row promises the batch field {field!r}, which its plan does not give; "
                            "correct this component")
        given = batch[field]
        if given.shape != struct.shape or given.dtype != struct.dtype:
            raise UserError(f"{what}: the batch field {field!r} of its plan is {given.dtype}{list(given.shape)}; "
                            f"expected {struct.dtype}{list(struct.shape)}; correct this component")
