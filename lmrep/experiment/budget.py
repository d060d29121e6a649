"""The number of steps of a run with a `budget`: decided once, before its first step, and then read from its record."""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import jax

from lmrep.core.progress import duration, parse_duration
from lmrep.core.sharding import make_mesh
from lmrep.distributed.agreement import by_first_process
from lmrep.experiment.record import UNKNOWN_STEPS, Experiment
from lmrep.storage.workdir import CONFIG, read_config
from lmrep.training import speed as speeds
from lmrep.training.stages import Stage

SECTIONS = "evaluation", "checkpoint"  # whose `every` depends on the steps

log = logging.getLogger(__name__)


def with_record(experiment: Experiment, directory: Path, checkpoints: Sequence[int]) -> Experiment:
    """Returns an experiment of unknown steps with the steps that were decided for the run in a workdir. Without a run
    of the same config, it stays as it is.

    Args:
      checkpoints: the steps of the run's checkpoints. A run that has some keeps its steps; `checks.check_resumable`
        refuses other changes.
    """
    fields = by_first_process(lambda: _recorded(experiment, directory, bool(checkpoints)))
    return _changed(experiment, **fields) if fields else experiment


def _recorded(experiment: Experiment, directory: Path, started: bool) -> dict[str, int] | None:
    """Returns the arguments of `_changed` that make the run in a workdir of the experiment; None if another config made
    it. The config of a run that has `started` is not compared."""
    if not (directory / CONFIG).is_file():
        return None
    config = read_config(directory)["config"]
    if config.get("budget") != experiment.budget:
        return None
    fields = {"steps": config["steps"], **{name: config[name]["every"] for name in SECTIONS}}
    new = json.loads(json.dumps(dataclasses.asdict(_changed(experiment, **fields))))
    return fields if started or all(value == config.get(name) for name, value in new.items()) else None


def _changed(experiment: Experiment, steps: int, evaluation: int, checkpoint: int) -> Experiment:
    """Returns the experiment with a number of steps, and with the intervals that its config leaves open."""
    every = {"evaluation": evaluation, "checkpoint": checkpoint}
    sections = {name: dataclasses.replace(getattr(experiment, name), every=every[name]) for name in SECTIONS
                if getattr(experiment, name).every == UNKNOWN_STEPS}
    return dataclasses.replace(experiment, steps=steps, **sections)


def with_steps(experiment: Experiment, stage: Stage) -> Experiment:
    """Measures the speed of the run's stage, and returns the experiment with the steps that its budget allows. All
    processes call it, and get what the first one has measured.

    Raises:
      UserError: the budget is too short to compile and validate.
    """
    seconds = parse_duration(experiment.budget, "config.budget")
    log.info("measuring the speed of the first steps, for the budget of %s", experiment.budget)
    speed = speeds.measure(stage, make_mesh(*experiment.mesh.sizes(jax.device_count())), experiment.seed,
                           experiment.evaluation.seed, seconds)
    steps, every = by_first_process(lambda: speeds.decide(speed, seconds))
    log.info("budget %s: %s steps of %.3g s, with validations of %s every %s steps", experiment.budget, f"{steps:,}",
             speed.step, duration(speed.validation), f"{every:,}")
    return _changed(experiment, steps, every, every)
