"""Loads configs, with what they take from the checkpoint that a run starts from or whose vectors it reads: network,
tokenizer and head."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_collections

from lmrep.config import loading
from lmrep.core import hub, remote
from lmrep.core.paths import as_path
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.experiment import fine_tuning, page_files, resolve
from lmrep.experiment.record import ALL_OBJECTIVES, Experiment
from lmrep.experiment.resolve import CheckpointFacts
from lmrep.interop import conversion
from lmrep.interop.huggingface import Family
from lmrep.interop.huggingface.read import describe, read_network
from lmrep.interop.init_from import directory_of
from lmrep.storage.workdir import CONFIG
from lmrep.tasks import TASKS, heads


def load_config(
    file: str | os.PathLike, argument: str = "", overrides: Sequence[tuple[str, str]] = (),
    workdir: str | os.PathLike | None = None, planned: Mapping[str, Experiment] = MappingProxyType({}),
) -> ml_collections.ConfigDict:
    """Loads the config of a config file, or of one that comes with the package, with the overrides.

    Where `get_config` sets `init`, the config takes network and tokenizer of that checkpoint, and its head if both are
    of one task, before the overrides; where it sets `frozen["features"]` of a task instead, the tokenizer of that one.
    An address of the Hugging Face Hub without a revision is that of the run in `workdir`, if it has a commit there.
    `planned` are runs that may not have begun, by their workdir; where a config starts from one, the record says what
    its checkpoint will be.

    Raises:
      UserError: as `lmrep.config.loading.load`, `facts` and `lmrep.experiment.resolve.resolve`.
    """
    config = loading.load(page_files.find(file), argument)
    task = config.objective.name if config.get("objective", {}).get("name") in TASKS else ""
    source, field = config.get("init"), "init"
    if task and not source:
        source, field = config.get("frozen", {}).get("features"), "features"
    if source and hub.is_address(source):
        source = hub.pinned(source, field, hub.recorded(workdir))
    if source in planned and not (Path(source) / CONFIG).is_file():
        known = planned_facts(source, planned[source], task)
    else:
        known = facts(source, task, field) if source else None
    config = resolve.resolve(config, overrides, known)
    for name, path in config.get("frozen", {}).items():  # a run may be resumed from another directory
        config.frozen[name] = remote.as_url(path) or (str(Path(as_path(path)).absolute()) if path else "")
    return config


def config_of(
    config: Mapping[str, Any] | str | os.PathLike, overrides: Mapping[str, Any] = MappingProxyType({}),
    workdir: str | os.PathLike | None = None,
) -> Mapping[str, Any]:
    """Loads a config as functions take it: a config file with its choices after a colon, or a config, which is not
    changed; with the overrides, {path: value}. For the run in `workdir`, addresses of the Hugging Face Hub get the
    commits that it has, or else the present ones. Raises UserError as `load_config`."""
    pairs = [(path, value if isinstance(value, str) else repr(value)) for path, value in overrides.items()]
    if isinstance(config, str | os.PathLike):
        file, _, argument = as_path(config).partition(":")
        config = load_config(file, argument, pairs, workdir)
    elif "budget" in overrides or (config.get("budget") and "steps" not in overrides):
        config = resolve.resolve(ml_collections.ConfigDict(config).copy_and_resolve_references(), pairs)
    elif pairs:
        config = resolve.apply_overrides(ml_collections.ConfigDict(config).copy_and_resolve_references(), pairs)
    pins = workdir is not None and hub.PROTOCOL in str(config)
    return hub.pin(config, hub.recorded(workdir)) if pins else config


def facts(path: str | os.PathLike, task: str = "", field: str = "init") -> CheckpointFacts:
    """Reads what a config takes from a workdir or a published directory.

    Args:
      task: in `TASKS`, whose head is asked for; "" for none.
      field: of the config that names the directory, for messages.

    Raises:
      UserError: there is no checkpoint.
    """
    directory = directory_of(path, field)
    folder = "tokenizer" if conversion.is_workdir(directory) else ""
    network = experiments.read_run(directory)[0].model if folder else read_network(directory)
    tokenizer = tokenizers.load(directory / folder)
    absolute = remote.as_url(path) or str(directory.absolute())
    fields = {"name": tokenizer.name, "vocab_file": f"{absolute}/{folder}".rstrip("/"),
              "vocab_size": max(tokenizer.size, 64), "lowercase": tokenizer.lowercase,
              "direction": "backward" if tokenizer.backward else "forward",
              "unknown": "remove" if tokenizer.removes_unknown else "keep"}
    head = head_fields(directory, task, tokenizer.vocabulary.specials.get("pad")) if task else {}
    return CheckpointFacts(absolute, dict(network), fields, head)


def planned_facts(path: str, experiment: Experiment, task: str = "") -> CheckpointFacts:
    """Returns what a config takes from a run that has not begun, with a tokenizer that is trained then."""
    fields = {name: getattr(experiment.tokenizer, name)
              for name in ("name", "vocab_size", "lowercase", "direction", "unknown")}
    return CheckpointFacts(path, dict(experiment.model), fields, _run_head(experiment, task) if task else {})


def head_fields(path: Path, task: str, pad: int | None) -> dict[str, Any]:
    """Chooses the fields of a task's config that belong to its head, as they suit the network of a checkpoint."""
    config = TASKS[task].objective.config
    if not conversion.is_workdir(path):
        checkpoint, reading = describe(path), fine_tuning.task_network(task, read_network(path))
        saved = checkpoint.task.fields if checkpoint.task and checkpoint.task.task == task else {}
        left = {"context": "left"} if checkpoint.family.causal else {}
        return {**reading.head, **heads.published(config, checkpoint.family.pretraining.preset), **left, **saved}
    experiment = experiments.read_run(path)[0]
    return _run_head(experiment, task, conversion.family_of(path, experiment, pad))


def _run_head(experiment: Experiment, task: str, family: Family | None = None) -> dict[str, Any]:
    """Returns `head_fields` for a run, whose network is of a published family or of none."""
    stage = experiments.resolve_stages(experiment)[-1]
    if stage.objective_name == task:
        return {name: value for name, value in dataclasses.asdict(stage.objective).items()
                if name in conversion.HEAD_FIELDS}
    reading = fine_tuning.task_network(task, experiment.model)
    context = ALL_OBJECTIVES[stage.objective_name].conditions_on(stage.objective)
    if context not in ("both", "left"):  # a task reads both directions, where there are two
        context = reading.head.get("context", "both")
    config = TASKS[task].objective.config
    published = heads.published(config, family.pretraining.preset) if family else {}
    return {**reading.head, **published, "context": context}
