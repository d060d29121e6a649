"""Averages parameters over the checkpoints of a run, and reads the running averages of `optimizer.ema`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Tree, flatten, unflatten
from lmrep.data import tokenizers
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import read_config

AVERAGE = "opt_state/average"
SHARED = "carry/shared"


def parameters(checkpoints: Checkpoints, step: int, averaged: bool) -> Tree:
    """Returns the parameters of checkpoint `step` as numpy arrays. With `averaged`, those that have a running average
    are replaced by it. Raises as `Checkpoints.read`."""
    params, _ = checkpoints.read(step, "params")
    if averaged and checkpoints.holds(step, AVERAGE):
        params = params | checkpoints.read(step, AVERAGE)[0]
    return params


def mean(checkpoints: Checkpoints, steps: Sequence[int], averaged: bool) -> Tree:
    """Returns the mean of each parameter over several checkpoints (Vaswani et al., 2017, section 6.1: the last 5 or
    20). Sums are in float64, with one checkpoint in memory at a time. Raises as `Checkpoints.read`."""
    sums: dict[str, np.ndarray] = {}
    for step in steps:
        params = flatten(parameters(checkpoints, step, averaged))
        for path, value in params.items():
            sums[path] = sums.get(path, 0) + value.astype(np.float64)
    return unflatten({path: (total / len(steps)).astype(params[path].dtype) for path, total in sums.items()})


def average(source: Path, target: Path, steps: Sequence[int] = (), last: int = 3) -> list[int]:
    """Writes a workdir with one checkpoint, the mean of several checkpoints of a run, numbered as the last of them.

    Every command except `train` accepts the new workdir, and a run may start from it (`init=`).

    Args:
      source: the workdir of the run.
      target: the directory to write.
      steps: the checkpoints to average; if empty, the newest `last`.
      last: number of checkpoints to average if `steps` is empty, at least 2.

    Returns:
      The steps that were averaged.

    Raises:
      UserError: there is no run, it lacks a checkpoint, or `target` is not empty.
      RunFault: a checkpoint is damaged or the disk is full; nothing is written.
    """
    record = read_config(source)
    with contextlib.closing(Checkpoints(source / "checkpoints")) as checkpoints:
        available = checkpoints.steps()
        selected = sorted(set(steps)) or available[-last:]
        if missing := [step for step in selected if step not in available]:
            raise UserError(f"{source} holds no checkpoint {', '.join(map(str, missing))}; it holds "
                            f"{', '.join(map(str, available)) or 'none'}")
        if len(selected) < 2:
            raise UserError(f"{source} has checkpoint(s) {', '.join(map(str, available)) or 'none'}; averaging needs "
                            "at least two: save more often (checkpoint.every), keep more (checkpoint.keep), or give "
                            "other --steps")
        averaged = record["config"].get("evaluation", {}).get("averaged", True)
        with workdir.new_directory(target) as temporary:
            params = mean(checkpoints, selected, averaged)
            tokenizers.load(source / "tokenizer").save(temporary / "tokenizer")
            with contextlib.closing(Checkpoints(temporary / "checkpoints")) as written:
                written.save(selected[-1], {"params": params}, {"mean_of": selected})
            workdir.write_config(temporary, {
                **record, "mean_of": {"run": str(source.absolute()), "steps": selected}})
    return selected
