"""Checks of a run against its directory, its samples and its processes, before anything is written."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.data import records, tokenizers
from lmrep.data.store.prepare import RULES
from lmrep.distributed import process_group
from lmrep.experiment import config as experiments
from lmrep.experiment import data_sets
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data, TaskExperiment
from lmrep.objectives.base import Capability
from lmrep.storage import provenance
from lmrep.storage.workdir import CONFIG, read_config
from lmrep.training.stages import Stage, locate_stage


def check_samples(
    samples: Sequence[str], capabilities: Sequence[Capability], tokenizer: tokenizers.Tokenizer, max_length: int
) -> None:
    """Refuses sample texts that a model with some capabilities, which takes `max_length` tokens, could not take. Raises
    UserError."""
    for text in samples:
        accepting = [capability for capability in capabilities if capability.accepts(text)]
        if accepting:
            accepting[0].check([text], tokenizer, max_length)


def check_processes(sizes: Sequence[int], devices: int, processes: int) -> None:
    """Refuses a mesh that leaves devices of a run of several processes unused. Raises UserError."""
    if processes > 1 and math.prod(sizes) < devices:
        raise UserError(f"the mesh has {math.prod(sizes)} devices, and this run's {processes} processes have "
                        f"{devices}; use all of them, for example by mesh.data=-1")


def check_writable(directory: Path, flag: str = "workdir") -> None:
    """Refuses the directory given as `--flag` if it cannot be created or written to. Raises UserError."""
    if remote.as_url(directory):
        raise UserError(f"the {flag} {directory} is a remote store, and this needs a file system with locks; "
                        f"give another --{flag}")
    path = next(path for path in (directory, *directory.absolute().parents) if os.path.exists(path))
    if not (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
        why = "is not writable" if os.path.isdir(path) else "is not a directory"
        raise UserError(f"the {flag} {directory} cannot be used: {path} {why}; give another --{flag}")


def check_shared(directory: Path, seconds: float = 60) -> None:
    """Waits until this host sees the config.json that process 0 has written to the workdir.

    Raises:
      UserError: it does not appear within `seconds`, so the hosts do not share the workdir.
    """
    deadline = time.monotonic() + seconds  # network file systems show a new file late
    while not (directory / CONFIG).exists():
        if time.monotonic() > deadline:
            raise UserError(f"{directory.absolute()} does not hold what process 0 has written to the workdir; give a "
                            "--workdir on a file system that all hosts share")
        time.sleep(0.5)


def run_record(data: Data, stages: Sequence[Stage], frozen: Mapping[str, str] = MappingProxyType({})) -> dict:
    """Returns the contents of config.json: everything that decides what the run computes. `frozen` has the fingerprints
    of the frozen parts, by name."""
    labelled = {split: records.fingerprint(examples) for split, examples in data.records.items()}
    return {
        "config": dataclasses.asdict(data.experiment),
        "data": {
            "tokenizer": data.tokenizer.fingerprint,
            **{split: store.fingerprint for split, store in data.splits.items()},
            "plans": [stage.fingerprint for stage in stages],
            **({"records": labelled} if labelled else {"rules": RULES}),
            **({"frozen": dict(frozen)} if frozen else {}),
        },
    }


def check_same_record(record: dict) -> None:
    """Refuses a run whose processes differ in their config or data. All processes must call this.

    Raises:
      UserError: the `run_record` of a process differs from that of process 0 in a field that is not resumable.
    """
    if jax.process_count() == 1:
        return
    first, *others = (json.loads(text) for text in process_group.gather_texts(json.dumps(record)))
    for index, other in enumerate(others, 1):
        if lines := provenance.differences(first, other, tuple(f"config.{name}" for name in TaskExperiment.resumable)):
            raise UserError(f"process {index} differs from process 0:\n  " + "\n  ".join(lines)
                            + "\nGive all processes the same config, data and versions of packages")


def completed(experiment: Experiment) -> dict[str, Any]:
    """Returns the fields of an experiment, with defaults for those that its network, objective and format omit."""
    fields, stage = dataclasses.asdict(experiment), experiments.resolve_stages(experiment)[0]
    network = experiments.model_config(experiment.model)
    defaults = {"model": network, "objective": stage.objective, "format": stage.format}
    return fields | {name: _filled(fields[name], dataclasses.asdict(record)) for name, record in defaults.items()}


def _filled(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    missing = {name: value for name, value in defaults.items() if name not in fields}
    return missing | {name: _filled(value, defaults[name]) if isinstance(value, Mapping) and isinstance(
        defaults.get(name), Mapping) else value for name, value in fields.items()}


def check_rules(directory: Path, recorded: Mapping[str, Any]) -> None:
    """Refuses a run whose text was divided into splits and sentences by the rules of another version of lmrep, so that
    the same files give other examples now. `recorded` is the `data` of its config.json. Raises UserError."""
    if recorded.get("rules") != RULES:
        raise UserError(f"{directory} was trained by a version of lmrep that divided text into splits and sentences by "
                        f"other rules ({recorded.get('rules', 'before splits-2')}; now {RULES}): its training text may "
                        "be validation text here. Use that version for this, or give another --workdir")


def check_fingerprints(
    directory: Path, record: Mapping[str, Any], loaded: Mapping[str, str], experiment: Experiment
) -> None:
    """Refuses frozen parts that differ from those that a run was trained with.

    Args:
      directory: the run's workdir.
      record: the contents of its config.json.
      loaded: the fingerprints of the parts that were loaded, by name.
      experiment: the experiment, whose `frozen` names the parts.

    Raises:
      UserError: a fingerprint differs.
    """
    recorded = record["data"].get("frozen", {})
    for name, fingerprint in loaded.items():
        if name in recorded and recorded[name] != fingerprint:
            raise UserError(f"config.frozen.{name} is {experiment.frozen[name]!r}, which has other parameters than "
                            f"those that {directory} was trained with: its fingerprint was {recorded[name][:12]} and "
                            f"is {fingerprint[:12]} now. Put these parameters back, or give another --workdir")


def _changed_files(previous: dict, record: dict) -> list[str]:
    """Describes each split of a task whose examples differ between two `run_record`s, a line each; [] where one of
    them has no fingerprints of `records`."""
    lines, (old, new) = [], (contents["data"].get("records", {}) for contents in (previous, record))
    both = [experiments.parse(contents["config"]) for contents in (previous, record)]
    for split in records.SPLITS if old and new else ():
        if old.get(split) == new.get(split):
            continue
        before, after = (data_sets.files(experiment, split) or "none" for experiment in both)
        lines.append(f"data.{split}: {before} has other examples than before" if before == after else
                     f"data.{split}: {before} -> {after}, with other examples")
    return lines


def check_resumable(
    directory: Path, steps: Sequence[int], experiment: Experiment, data: Mapping[str, Any] | None = None
) -> None:
    """Refuses to resume a run if the new config or data would change its numbers.

    Args:
      directory: its workdir.
      steps: the steps of its checkpoints, at least one.
      experiment: the new config.
      data: `data` of the `run_record` of the new config and data; None before the data is read, which is then taken to
        be the same. (The config of a task is complete only once its data is read, and nothing is checked before.)

    Raises:
      UserError: a field that is not `resumable` differs, the data differs, or `steps` of the config is too small.
    """
    if data is None and experiment.labelled:
        return
    previous = read_config(directory)
    data = previous["data"] | {"rules": RULES} if data is None else data
    if "train" not in previous["data"] or "mean_of" in previous:
        what = ("holds the mean of another run's checkpoints" if "mean_of" in previous else
                "holds the parameters of another training loop" if "saved" in previous else "was converted")
        raise UserError(f"{directory} {what} and was not trained; give another --workdir, and start from this one with "
                        f":init={directory}")
    if "rules" in data:
        check_rules(directory, previous["data"])
    # A field that was added since had its default's effect before.
    previous = {**previous, "config": completed(experiments.parse(previous["config"]))}
    record = {"config": completed(experiment), "data": data}
    check_fingerprints(directory, previous, data.get("frozen", {}), experiment)
    files = _changed_files(previous, record)
    ignored = (*(f"config.{pattern}" for pattern in experiment.resumable), "data.*" if files else "data.records.*")
    lines = provenance.differences(json.loads(json.dumps(previous)), json.loads(json.dumps(record)), ignored)
    if lines or files:
        raise UserError(f"{directory} holds a run of another configuration:\n  " + "\n  ".join([*lines, *files])
                        + "\nGive these fields their previous values" + " and examples" * bool(files)
                        + " to resume it, or another --workdir to start anew")
    if steps[-1] > experiment.steps:
        raise UserError(f"{directory} holds a run at step {steps[-1]:,}, and steps is {experiment.steps:,}; "
                        f"set steps to {steps[-1]} or more, or give another --workdir")
    before = experiments.parse(previous["config"])
    if experiment.steps < before.steps:
        raise UserError(f"{directory} holds a run of {before.steps:,} steps, and steps is {experiment.steps:,}; a run "
                        "can be made longer but not shorter, since its learning rate depends on its steps")
    positions = [locate_stage(experiments.resolve_stages(e), steps[-1] - 1) for e in (before, experiment)]
    if positions[0] != positions[1]:
        raise UserError(f"with steps={experiment.steps:,} the stages of {directory} would have changed before its step "
                        f"{steps[-1]:,}; keep steps={before.steps}, or give another --workdir")
