"""Loads the frozen parts of an experiment, `config.frozen`: parameters that objectives read and no update changes. A
part is a run, a published directory, or a text file of word vectors.

Parts are loaded at every start of a run and never saved with it; the run's config.json has their fingerprints.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.core.params import ParamSpec, Tree, count, flatten, unflatten
from lmrep.data import tokenizers, word_vectors
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, ResolvedStage
from lmrep.experiment.record import ALL_OBJECTIVES
from lmrep.layers.stack import Execution
from lmrep.models.base import Context
from lmrep.objectives.base import FrozenPart, FrozenParts
from lmrep.storage import averaging, remote_workdir
from lmrep.storage.checkpoints import DamagedCheckpoint
from lmrep.storage.workdir import CONFIG

# Fields of networks that were added after the first fingerprints, at the values of the networks of before: a run with a
# frozen part is resumed, whichever version began it.
NEWER = {"layer_weights": "none", "attention_cap": 0.0, "logit_cap": 0.0, "mask_decoder": 0}


class Trained(NamedTuple):
    """A trained network as it is read from a directory."""

    source: str  # the directory and the step, for people
    experiment: Experiment  # the experiment that trained it; for a published one, an equivalent experiment
    step: int  # of its checkpoint
    tokenizer: tokenizers.Tokenizer
    values: Mapping[str, np.ndarray] | None  # float32 arrays by path; None if they were not requested


def read_run(directory: Path, name: str, values: bool) -> Trained:
    """Reads the run in a workdir, at its default checkpoint (`read_params`); `name` is its path, for people. Without
    `values`, no checkpoint is read.

    Raises:
      UserError: it has no checkpoint.
      RunFault: none verifies.
    """
    experiment = experiments.read_run(directory)[0]
    tokenizer, params, step = tokenizers.load(directory / "tokenizer"), None, experiment.steps
    if values:
        step, tree, _ = read_params(name, experiment)
        name, params = f"{name}, step {step:,}", flatten(tree)
    return Trained(name, experiment, step, tokenizer, params)


def read_params(
    workdir: str | os.PathLike, experiment: Experiment, step: int | None = None, raw: bool = False
) -> tuple[int, Tree, bool]:
    """Reads a run's parameters: (step, nested dict of numpy arrays, whether running averages are among them).

    Args:
      workdir: may be remote.
      experiment: the run's experiment.
      step: of the checkpoint; None for the default one: the best if the config says so (`checkpoint.load`), otherwise
        the newest. A damaged one is skipped.
      raw: whether to leave averages out that `evaluation.averaged` would use.

    Raises:
      UserError: there is no checkpoint, or not this one.
      RunFault: it is damaged, or all are.
    """
    averaged, loads_best = experiment.evaluation.averaged and not raw, experiment.checkpoint.load == "best"
    with remote_workdir.opened(workdir, experiments.best_direction(experiment)) as checkpoints:
        if step is not None and step not in (steps := checkpoints.steps()):
            raise UserError(f"{workdir} holds no checkpoint {step}; it holds {', '.join(map(str, steps))}")
        while True:
            at = checkpoints.best() if loads_best and step is None else step
            at = checkpoints.newest() if at is None else at
            try:
                return (at, averaging.parameters(checkpoints, at, averaged),
                        averaged and checkpoints.holds(at, averaging.AVERAGE))
            except DamagedCheckpoint:  # of a store: `newest` and `best` pass over it now
                if step is not None:
                    raise


# Kind of directory -> its reader, (directory, name, values) -> Trained. `lmrep.interop.conversion` adds "published".
READERS: dict[str, Callable[[Path, str, bool], Trained]] = {"run": read_run}


def part_paths(frozen: Mapping[str, str], stages: Sequence[ResolvedStage]) -> dict[str, str]:
    """Returns {name: path} of the parts, of `config.frozen`, that stages read.

    Raises:
      UserError: `frozen` lacks a part that a stage reads, or has one that no stage reads.
    """
    paths = {name: path for name, path in frozen.items() if path}
    read: dict[str, str] = {}
    for stage in stages:
        for name in ALL_OBJECTIVES[stage.objective_name].parts(stage.objective):
            read[name] = stage.objective_name
            if name not in paths:
                raise UserError(f"objective {stage.objective_name!r} reads the frozen part {name!r}, which "
                                "config.frozen lacks; give a run or a published directory: "
                                f"--config.frozen.{name}=runs/bert")
    if unread := [name for name in paths if name not in read]:
        raise UserError(f"config.frozen has {', '.join(map(repr, unread))}, which no objective of this run reads "
                        f"({'they read ' + ', '.join(map(repr, read)) if read else 'they read none'}); remove it, or "
                        "set the field of the objective that names it")
    return paths


def locate(name: str, path: str) -> Path:
    """Returns the file or directory of a part, or a copy without checkpoints if it is remote. `name` is the part's name
    in `config.frozen`, for messages. Raises UserError if there is none."""
    where = f"config.frozen.{name} is {path!r}"
    if remote.as_url(path):
        try:
            return remote_workdir.local_copy(path)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    local = Path(path)
    if not local.is_file() and not (local / CONFIG).is_file():
        why = f"which has no {CONFIG}" if local.is_dir() else "which does not exist"
        raise UserError(f"{where}, {why}; give the workdir of a run, a published directory or a file of word vectors")
    return local


def load(
    experiment: Experiment, tokens: Sequence[str] | None = None, values: bool = True, teachers: bool = True
) -> dict[str, FrozenPart]:
    """Loads the frozen parts of an experiment, by name.

    Args:
      experiment: the experiment; its `frozen` names the parts.
      tokens: the tokens of its tokenizer, by id; None if the tokenizer is not trained yet.
      values: whether to load parameters; without them, parts have only specs.
      teachers: whether to load the parts that only losses read.

    Raises:
      UserError: a part is missing, was trained with other tokens although the objective needs the same ones, or has too
        few positions; or as `part_paths`.
      RunFault: a run has no checkpoint that verifies.
    """
    stages = experiments.resolve_stages(experiment)
    only_losses, longest = teacher_names(stages), max(stage.length for stage in stages)
    parts = {name: _part(name, path, experiment.execution, values, name in only_losses)
             for name, path in part_paths(experiment.frozen, stages).items() if teachers or name not in only_losses}
    for name, part in parts.items():
        if name in only_losses or part.model is not None:
            _check_encoder(part, experiment.frozen[name], longest, tokens)
    return parts


def teacher_names(stages: Sequence[ResolvedStage]) -> set[str]:
    """Returns the names of the parts that only the losses of stages read."""
    return {name for stage in stages for name in ALL_OBJECTIVES[stage.objective_name].teachers}


def _part(name: str, path: str, execution: Execution, values: bool, teacher: bool) -> FrozenPart:
    """Loads a part, whose network is computed with the execution settings of this run; `teacher` says whether only its
    loss reads it."""
    local = locate(name, path)
    if local.is_file():
        table = word_vectors.read(local)
        specs = {"vectors": ParamSpec(table.vectors.shape, ("vocab", None))}
        params = {"vectors": table.vectors} if values else {}
        return FrozenPart(name, path, specs, table.words, values=params, fingerprint=_fingerprint(table.words, params))
    published = remote_workdir.is_published((local / CONFIG).read_bytes())
    if published and "published" not in READERS:
        raise UserError(f"config.frozen.{name} is {path!r}, a published directory; to read it, import "
                        "lmrep.interop.conversion")
    trained = READERS["published" if published else "run"](local, path, values)
    source = dataclasses.replace(trained.experiment, execution=execution)
    own_teachers = teacher_names(experiments.resolve_stages(source))
    if nested := [part for part in source.frozen if source.frozen[part] and part not in own_teachers]:
        raise UserError(f"config.frozen.{name} is {path!r}, a run that has frozen parts of its own "
                        f"({', '.join(nested)}); give a run that has none")
    network = experiments.build_model(source, trained.tokenizer.size)
    stage = experiments.stage_at(source, trained.step)
    objective = build.objective(stage, network, trained.tokenizer.vocabulary)
    encoder = experiments.model_def(source.model).encoder
    # An encoder-decoder gives the vectors of its encoder, unless it is a teacher.
    if encoder and objective.uses.conditions_on == Context.SOURCE and not teacher:
        source = dataclasses.replace(source, model={**source.model, **encoder})
        network = experiments.build_model(source, trained.tokenizer.size)
        objective = objective._replace(specs={"encoder": network.specs},
                                       uses=objective.uses._replace(conditions_on=Context.BOTH))
    specs, params = _matching(objective.specs, trained)
    fields = network_fields(experiments.model_config(source.model, trained.tokenizer.size))
    return FrozenPart(name, trained.source, specs, trained.tokenizer.tokens, network, objective, stage.objective,
                      params, _fingerprint([fields, trained.tokenizer.fingerprint], params))


def network_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of a network's config for fingerprints, without the ones in `NEWER` at their values there."""
    return {name: value for name, value in dataclasses.asdict(config).items() if NEWER.get(name, ...) != value}


def _matching(specs: Tree, trained: Trained) -> tuple[Tree, dict[str, np.ndarray]]:
    """Returns (specs, float32 values by path) of the parameters that a checkpoint has; published ones may lack a
    head."""
    if trained.values is None:
        return specs, {}
    present = {path: spec for path, spec in flatten(specs).items() if path in trained.values}
    for path, spec in present.items():
        if trained.values[path].shape != spec.shape:
            raise UserError(f"{path} of {trained.source} is {trained.values[path].shape}, and its config says "
                            f"{spec.shape}; restore its config.json")
        if not np.isfinite(trained.values[path]).all():
            raise UserError(f"{path} of {trained.source} has values that are not finite; give another checkpoint")
    return unflatten(present), {path: np.asarray(trained.values[path], np.float32) for path in present}


def _fingerprint(description: object, values: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of the description and the parameters; "" without parameters."""
    if not values:
        return ""
    hashed = hashlib.sha256(digest(description).encode())
    for path in sorted(values):
        hashed.update(f"{path} {values[path].shape}".encode())
        hashed.update(np.ascontiguousarray(values[path]).data)
    return hashed.hexdigest()


def _check_encoder(part: FrozenPart, path: str, longest: int, tokens: Sequence[str] | None) -> None:
    if part.model is None:
        raise UserError(f"config.frozen.{part.name} is {part.source}, a file of word vectors; expected a run or a "
                        "published directory")
    if tokens is not None and list(tokens) != list(part.tokens):
        pairs = enumerate(zip(part.tokens, tokens, strict=False))
        i, (own, of_run) = next((pair for pair in pairs if pair[1][0] != pair[1][1]), (0, ("", "")))
        difference = (f"its token {i} is {own!r}, and this run's {of_run!r}" if len(part.tokens) == len(tokens) else
                      f"it has {len(part.tokens):,} tokens, and this run's {len(tokens):,}")
        raise UserError(f"config.frozen.{part.name} ({part.source}) has another tokenizer than this run: "
                        f"{difference}. Both read the same tokens; use its tokenizer: "
                        f"--config.tokenizer.vocab_file={path}/tokenizer, or start from it (init)")
    if 0 < part.model.max_length < longest:
        raise UserError(f"config.frozen.{part.name} ({part.source}) has positions for {part.model.max_length} tokens, "
                        f"and sequences have {longest}; lower config.length")


def fingerprints(parts: FrozenParts) -> dict[str, str]:
    """Returns {name: fingerprint}, for config.json."""
    return {name: part.fingerprint for name, part in parts.items()}


def describe(parts: FrozenParts) -> list[str]:
    """Describes each part in a line, for people."""
    return [f"frozen {name}: {count(part.specs):,} parameters of {part.source}, which are not trained"
            for name, part in parts.items()]
