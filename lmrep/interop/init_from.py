"""Initializes the parameters of a run from another run or a published checkpoint (`init=`), matched by path.

Tables over the vocabulary are matched by token, so that a vocabulary may be extended, reduced or reordered. A token
that the source checkpoint lacks starts as the mean of all rows.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.input_files import check_plain
from lmrep.core.params import Tree, flatten, init
from lmrep.core.paths import as_path
from lmrep.data import tokenizers, word_vectors
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment import config as experiments
from lmrep.experiment.record import Experiment
from lmrep.inference.load import load as load_run
from lmrep.interop import bilm, conversion, fastai
from lmrep.interop.heads import FORM
from lmrep.interop.huggingface.read import describe as describe_published
from lmrep.interop.huggingface.read import read as read_published
from lmrep.interop.path_mapping import Origin, origins, take
from lmrep.models import MODELS, name_of
from lmrep.storage import remote_workdir, workdir
from lmrep.tasks import TASKS
from lmrep.training.stages import Stage
from lmrep.training.state import trainable

log = logging.getLogger(__name__)
# Where the dense layer and the norm of a task's head (`Head.norm`) start: ModernBERT's classes for tasks have those of
# its masked-LM head.
PREDICTION_HEAD = {"dense": "objective/masked/transform", "norm": "objective/masked/norm"}


class SourceCheckpoint(NamedTuple):
    """The checkpoint that a run starts from."""

    name: str  # its path, for people
    tokens: Sequence[str]  # the tokens of its tokenizer, by id
    params: dict[str, np.ndarray]  # float32 arrays by path, named as in `Objective.specs`
    network: dict[str, Any]  # the fields of its network's config
    # the fields of the config of the objective that it was trained with; {} if that is unknown
    objective: Mapping[str, Any] = {}
    step: int | None = None  # of a run; None for a published directory


def load(path: str | os.PathLike, step: int | None = None) -> SourceCheckpoint:
    """Reads the parameters of a run in a workdir, at its checkpoint `step` or its default one, or of a published
    directory.

    Raises:
      UserError: there is no such directory or checkpoint, or a value is not finite.
      RunFault: no checkpoint verifies.
    """
    directory = directory_of(path)
    if conversion.is_workdir(directory):
        run = load_run(path, step)
        params = {name: np.asarray(value) for name, value in flatten(trainable(run.params)).items()}
        network = dataclasses.asdict(experiments.model_config(run.experiment.model))
        stage = experiments.stage_at(run.experiment, run.step)
        objective = {"name": stage.objective_name, **dataclasses.asdict(stage.objective)}
        source = SourceCheckpoint(f"{path}, step {run.step:,}", run.tokenizer.tokens, params, network, objective,
                                  run.step)
    elif step is not None:
        raise UserError(f"the step is {step}, and {path} is a published directory, which has one checkpoint; leave the "
                        "step out")
    else:
        checkpoint = read_published(directory)
        network, task = dataclasses.asdict(checkpoint.config), checkpoint.task
        objective = {"name": task.task, **task.fields} if task else {}
        tokens = tokenizers.load(directory).tokens
        source = SourceCheckpoint(str(path), tokens, dict(checkpoint.params), network, objective)
    if broken := [name for name, value in source.params.items() if not np.isfinite(value).all()]:
        raise UserError(f"{source.name} has values that are not finite in {', '.join(broken[:4])}; start from another "
                        "checkpoint")
    return source


def directory_of(path: str | os.PathLike, field: str = "init") -> Path:
    """Returns `path` if it is a workdir or a published directory that can be read, or else a local copy of a remote
    one, without its checkpoints. `field` is its name in messages. Raises UserError if it is neither."""
    if remote.as_url(path):
        try:
            return remote_workdir.local_copy(path)
        except UserError as error:
            raise UserError(f"{field} is {os.fspath(path)!r}: {error}") from error
    path = Path(as_path(path))  # pages read checkpoints before their config is parsed
    if not (path / workdir.CONFIG).is_file():
        if path.is_dir() and bilm.find(path):
            raise UserError(f"{field} is {str(path)!r}, which holds ELMo's published files: make a workdir of them by "
                            f"lmrep convert {path} runs/elmo, and give that")
        if fastai.is_published(path):
            raise UserError(f"{field} is {str(path)!r}, which holds a language model of fastai: make a workdir of it "
                            f"by lmrep convert {path} runs/fastai, and give that")
        if path.is_file():
            fastai.check_no_pickle(path)
            check_plain(path)
        why = f"which has no {workdir.CONFIG}" if path.is_dir() else "which is not a directory"
        raise UserError(f"{field} is {str(path)!r}, {why}; give the workdir of a run or a published directory")
    if not conversion.is_workdir(path):
        describe_published(path)
    return path


def initialized(stage: Stage, experiment: Experiment, tokenizer: Tokenizer) -> Stage:
    """Returns the first stage with initial values from the checkpoint `experiment.init` and from the word vectors
    `experiment.init_vectors`. Raises UserError and RunFault as `source_of`, `match` and `check_network`."""
    specs, values, tokens = flatten(stage.objective.specs), {}, tokenizer.tokens
    if experiment.init:
        source = source_of(experiment)
        fit = match(stage.objective.specs, source, tokens, experiment.init_mapping)
        network = experiments.model_config(experiment.model)
        log.info("%s", "\n".join([describe(fit, source), *check_network(network, source)]))
        if experiment.init_vocabulary == "match":
            new = max(fit.extended.values(), default=0)
            log.info("  vocabulary: %s tokens start from their rows in the checkpoint, %s new ones from the mean row",
                     f"{len(tokens) - new:,}", f"{new:,}")
        values |= fit.values
        if layers := getattr(experiment, "new_layers", 0):
            values = fresh_layers(values, stage.objective.specs, layers, experiment.seed)
            log.info("  the top %d layer(s) start from random values", layers)
    for path, file in experiment.init_vectors.items():
        if path not in specs or len(specs[path].shape) != 2:
            tables = [name for name, spec in specs.items() if spec.axes[:1] == ("vocab",)]
            raise UserError(f"config.init_vectors has {path!r}, which is no table of tokens; this run has "
                            f"{', '.join(tables)}")
        values[path], known = word_vectors.table(file, tokens, specs[path].shape)
        log.info("%s starts from %s, which has %s of %s tokens; the others start from 0", path, file, f"{known:,}",
                 f"{len(tokens):,}")
    return dataclasses.replace(stage, init_values={**stage.init_values, **values})


def source_of(experiment: Experiment) -> SourceCheckpoint:
    """Loads the checkpoint `experiment.init`, with the head of the run's task. Raises UserError and RunFault as `load`
    and `for_task`."""
    source, task = load(experiment.init), TASKS.get(experiment.objective["name"])
    return for_task(source, task.initial, experiment.objective, experiment.head == "new") if task else source


def for_task(
    source: SourceCheckpoint, initial: Mapping[str, str], objective: Mapping[str, Any], new_head: bool
) -> SourceCheckpoint:
    """Returns a checkpoint with the parameters that a task's head starts from.

    Args:
      initial: path of the head -> path of the pretraining head that it starts from (`TaskDef.initial`).
      objective: the fields of the task's config.
      new_head: whether the head starts from random values; only the encoder is kept then.

    Raises:
      UserError: the source has a head for this task with other labels, or with another meaning of its parameters.
    """
    if new_head:
        return source._replace(params={path: value for path, value in source.params.items()
                                       if path.startswith("encoder/")})
    if source.objective.get("name") == objective["name"]:
        _check_head(source, objective)
    params = dict(source.params)
    if objective.get("norm") and not source.network.get("embedding"):  # embedding: a masked-LM head of another width
        initial = {**initial, **{f"objective/{objective['name']}/{part}": old for part, old in PREDICTION_HEAD.items()}}
    for target, old in ({} if objective.get("hidden") else initial).items():  # hidden: a layer of another width
        for path, value in source.params.items():
            if path.startswith(f"{old}/"):
                params.setdefault(target + path.removeprefix(old), value)
    return source._replace(params=params)


def _check_head(source: SourceCheckpoint, objective: Mapping[str, Any]) -> None:
    """Refuses a head whose outputs or parameters mean something else in this run."""
    old_labels, labels = (tuple(fields.get("labels", ())) for fields in (source.objective, objective))
    if old_labels != labels:
        raise UserError(f"init has a head for the labels {', '.join(old_labels[:20])}, in this order ({source.name}), "
                        f"and this run has {', '.join(labels[:20])}; give the head random parameters with "
                        "--config.head=new")
    for name in (*FORM, "end"):
        old, new = (fields.get(name) for fields in (source.objective, objective))
        if None not in (old, new) and old != new and (name != "activation" or objective.get("dense")):
            raise UserError(f"objective.{name} is {new!r} in this run and {old!r} in the head of {source.name}, so "
                            f"its parameters would mean something else; set --config.objective.{name}={old}, or "
                            "give the head random parameters with --config.head=new")


class Match(NamedTuple):
    """The parameters that a run takes from a source checkpoint."""

    values: dict[str, np.ndarray]  # arrays by path
    extended: dict[str, int]  # path of a table over the vocabulary -> number of tokens that the source lacks
    missing: list[str]  # paths of the run that the source lacks; they are initialized
    unused: list[str]  # paths of the source that the run does not use
    origins: Mapping[str, Origin] = {}  # path of the run -> origin in the source, if it is not the same path


def match(
    specs: Tree, source: SourceCheckpoint, tokens: Sequence[str], mapping: Mapping[str, str] = MappingProxyType({})
) -> Match:
    """Matches the parameters of a source checkpoint with the parameters of a run.

    Args:
      specs: the specs of the run's parameters.
      tokens: the tokens of the run's tokenizer, by id.
      mapping: `config.init_mapping`, as in `path_mapping.origins`.

    Raises:
      UserError: nothing matches, or a parameter has another shape; or as `path_mapping.origins`.
    """
    specs_by_path = flatten(specs)
    starts = origins(specs_by_path, source.params, mapping)
    values, extended = {}, {}
    source_rows = None  # the row of each token of the run in the source's table, -1 for none; None if all are equal
    if list(tokens) != list(source.tokens):
        rows = {token: i for i, token in enumerate(source.tokens)}
        source_rows = np.array([rows.get(token, -1) for token in tokens])
    for path, spec in specs_by_path.items():
        if path not in starts:
            continue
        value = take(source.params[starts[path].path], starts[path], path)
        axis = spec.axes.index("vocab") if "vocab" in spec.axes else None
        if axis is not None and (source_rows is not None or value.shape[axis] != spec.shape[axis]):
            value, extended[path] = _match_vocabulary(value, spec.shape[axis], axis, source_rows, len(tokens))
        if value.shape != spec.shape:
            origin = "" if starts[path] == Origin(path) else f" ({starts[path]})"
            raise UserError(f"{path} is {spec.shape} in this run and {value.shape} in {source.name}{origin}; use the "
                            "sizes of that checkpoint's network (:init= in --config does)")
        values[path] = value
    if not values:
        some = ", ".join(sorted(source.params)[:5])
        raise UserError(f"{source.name} has none of this run's parameters; it has {some} ...; start from a model "
                        "with the same network")
    return Match(values, {path: n for path, n in extended.items() if n},
                 sorted(set(specs_by_path) - set(values)),
                 sorted(set(source.params) - {origin.path for origin in starts.values()}),
                 {path: origin for path, origin in starts.items() if origin != Origin(path)})


def _match_vocabulary(
    table: np.ndarray, size: int, axis: int, source_rows: np.ndarray | None, tokens: int
) -> tuple[np.ndarray, int]:
    """Makes (a table with `size` entries along `axis`, the run's tokens first; the number of tokens that `table`
    lacks). All other entries are the mean of `table`."""
    table = np.moveaxis(table, axis, 0)
    if source_rows is None:
        source_rows = np.arange(tokens)
    source_rows = np.where(source_rows < len(table), source_rows, -1)
    result = np.broadcast_to(table.mean(0, dtype=np.float64).astype(table.dtype), (size, *table.shape[1:])).copy()
    known = source_rows >= 0
    result[: len(source_rows)][known] = table[source_rows[known]]
    return np.moveaxis(result, 0, axis), int((~known).sum())


def fresh_layers(values: Mapping[str, np.ndarray], specs: Tree, layers: int, seed: int) -> dict[str, np.ndarray]:
    """Replaces the encoder's top `layers` layers by random initial values, as Zhang et al. (2021) advise for small data
    sets.

    Raises:
      UserError: the network has fewer stacked layers.
    """
    stacked = {path: spec for path, spec in flatten(specs).items()
               if path.startswith("encoder/") and spec.axes[:1] == ("layers",)}
    depth = max((spec.shape[0] for spec in stacked.values()), default=0)
    if layers > depth:
        raise UserError(f"new_layers is {layers}, and the network has {depth} layers that can be initialized anew; set "
                        f"--config.new_layers to {depth} at most")
    fresh = jax.device_get(jax.jit(lambda key: {
        path: value for path, value in flatten(init(specs, key)).items() if path in stacked})(jax.random.key(seed)))
    return dict(values) | {path: np.concatenate([values[path][:-layers], fresh[path][-layers:]])
                           for path in stacked if path in values}


def check_network(network: Any, source: SourceCheckpoint) -> list[str]:
    """Describes how a network's config differs from the source checkpoint's, apart from vocabulary and length, in a
    line; [] if it does not.

    Raises:
      UserError: a field of `ModelDef.architecture_fields` differs, so that parameters have another meaning.
    """
    differing = {name: (source.network[name], value) for name, value in dataclasses.asdict(network).items()
                 if name in source.network and source.network[name] != value and name not in ("vocab", "max_length")}
    for name in MODELS[name_of(network)].architecture_fields:
        if name in differing:
            old, new = differing[name]
            raise UserError(f"model.{name} is {new!r} in this run and {old!r} in {source.name}, so its parameters "
                            f"would mean something else; set --config.model.{name}={old}")
    changes = [f"{name} {old!r} -> {new!r}" for name, (old, new) in differing.items()]
    return [f"  the network differs: {', '.join(changes)}"] if changes else []


def describe(parameters: Match, source: SourceCheckpoint) -> str:
    """Lists every parameter that is taken, initialized or unused, for people."""
    def listing(title: str, paths: Sequence[str]) -> list[str]:
        return [f"  {title} ({len(paths)}): {', '.join(paths)}"] if paths else []

    extended = [f"{path} ({n:,} new rows, each the mean)" for path, n in parameters.extended.items()]
    return "\n".join([
        f"parameters start from {source.name}",
        *listing("taken", [f"{path} from {parameters.origins[path]}" if path in parameters.origins else path
                           for path in sorted(parameters.values)]),
        *listing("extended", extended),
        *listing("not in the checkpoint, so initialized", parameters.missing),
        *listing("unused", parameters.unused)])
