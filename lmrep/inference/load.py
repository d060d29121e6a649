"""Loads a trained run from its workdir."""

import dataclasses
import logging
import os
import types
from collections.abc import Mapping
from typing import Any

import jax

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Tree, flatten, unflatten
from lmrep.core.paths import as_path
from lmrep.data import tokenizers
from lmrep.experiment import build, checks, frozen, resolve
from lmrep.experiment import config as experiments
from lmrep.experiment.config import stage_at
from lmrep.experiment.record import ALL_OBJECTIVES
from lmrep.inference import evaluate_task
from lmrep.inference.ensemble import check
from lmrep.inference.run import Run
from lmrep.objectives.base import FrozenParts, Objective
from lmrep.storage import averaging, remote_workdir
from lmrep.training.state import specs_of, with_shared

log = logging.getLogger(__name__)


def load(
    directory: str | os.PathLike, step: int | None = None, model: Mapping[str, Any] = types.MappingProxyType({}),
    objective: Mapping[str, Any] = types.MappingProxyType({}), ensemble: str = "",
) -> Run:
    """Loads the run in a workdir, which may be remote.

    Args:
      directory: the workdir.
      step: the step of the checkpoint; None for the best one if the run's config says so (`checkpoint.load`), otherwise
        for the newest that verifies.
      model: fields of the network to change, such as `{"memory": 640}`; only `ModelDef.evaluation_fields`.
      objective: fields of the objective to change, such as `{"search": {"beams": 4}}`; only
        `ObjectiveDef.evaluation_fields`.
      ensemble: workdirs of other runs of the same task and labels, with commas between them, whose probabilities are
        averaged with those of this run in its predictions and metrics.

    Raises:
      UserError: there is no run, or no checkpoint of that step; a field does not exist, or cannot change; a run of the
        ensemble is of another task.
      RunFault: no checkpoint verifies, or the tokenizer has changed.
    """
    workdir, directory = directory, remote_workdir.local_copy(directory)
    experiment, record = experiments.read_run(directory)
    experiment = resolve.with_model_fields(experiment, model)
    experiment = resolve.with_objective_fields(experiment, objective)
    tokenizer = tokenizers.load(directory / "tokenizer")
    if tokenizer.fingerprint != record["data"]["tokenizer"]:
        raise RunFault(f"{directory / 'tokenizer'} is not the tokenizer that the run was trained with; restore it")
    model = experiments.build_model(experiment, tokenizer.size)
    step, params, _ = frozen.read_params(workdir, experiment, step)
    experiment = evaluate_task.with_tuned(experiment, directory, step)
    parts = frozen.load(experiment, tokenizer.tokens, teachers=False)
    checks.check_fingerprints(directory, record, frozen.fingerprints(parts), experiment)
    objective = build.objective(stage_at(experiment, step), model, tokenizer.vocabulary, parts)
    if objective.frozen:
        params = params | unflatten(build.frozen_values(objective, parts))
    shapes = jax.eval_shape(lambda: objective.carry(1)).shared
    if jax.tree.leaves(shapes):
        with remote_workdir.opened(workdir) as checkpoints:
            if checkpoints.holds(step, averaging.SHARED):
                params = with_shared(params, checkpoints.restore(step, shapes, averaging.SHARED)[0])
    params = jax.device_put(params, jax.local_devices()[0])
    run = Run(directory, step, experiment, tokenizer, model, objective, params, parts)
    others = tuple(load(as_path(other)) for other in ensemble.split(",")) if ensemble else ()
    check(run, others)
    return dataclasses.replace(run, others=others)


def objective_params(run: Run, objective: Objective) -> Tree:
    """Selects the parameters of an objective; a converted checkpoint may have more, such as a pooler. Raises UserError
    if one is missing."""
    needed, params = flatten(specs_of(objective)), flatten(run.params)
    if missing := sorted(needed.keys() - params.keys()):
        raise UserError(f"{run.directory} lacks parameters of its objective: {', '.join(missing[:3])}; train them "
                        f"first, in a run with :init={run.directory}")
    return unflatten({path: params[path] for path in needed})


def with_teachers(run: Run) -> tuple[FrozenParts, str]:
    """Returns (the run's frozen parts including teachers, which only its loss reads; ""). If the teachers cannot be
    loaded, or differ from those of training, returns (the parts without teachers, the teachers' names)."""
    stage = stage_at(run.experiment, run.step)
    definition = ALL_OBJECTIVES[stage.objective_name]
    teachers = ", ".join(name for name in definition.parts(stage.objective) if name in definition.teachers)
    if not teachers:
        return run.frozen, ""
    try:
        parts = frozen.load(run.experiment, run.tokenizer.tokens)
        _, record = experiments.read_run(run.directory)
        checks.check_fingerprints(run.directory, record, frozen.fingerprints(parts), run.experiment)
    except (UserError, RunFault) as error:
        log.warning("%s. The loss is without the terms of the %s, and lower than in training", error, teachers)
        return run.frozen, teachers
    return parts, ""
