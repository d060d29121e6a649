"""Parameters as averages: over the steps of a run (`optimizer.ema`), and over its checkpoints."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Tree, flatten, unflatten
from lmrep.data import tokenizers
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import CONFIG, read_config

AVERAGE = "opt_state/average"


def parameters(checkpoints: Checkpoints, step: int, averaged: bool) -> Tree:
    """The parameters that checkpoint `step` is used with, as numpy arrays: their running averages if `averaged` and it
    holds any. Frozen ones have none. Raises as `Checkpoints.read`."""
    params, _ = checkpoints.read(step, "params")
    if averaged and checkpoints.holds(step, AVERAGE):
        params = params | checkpoints.read(step, AVERAGE)[0]
    return params


def mean(checkpoints: Checkpoints, steps: Sequence[int], averaged: bool) -> Tree:
    """The mean of each parameter over checkpoints (Vaswani et al. 2017, section 6.1: the last 5 or 20 of a run).

    Sums are float64, one checkpoint in memory at a time. Raises as `Checkpoints.read`.
    """
    sums: dict[str, np.ndarray] = {}
    for step in steps:
        params = flatten(parameters(checkpoints, step, averaged))
        for path, value in params.items():
            sums[path] = sums.get(path, 0) + value.astype(np.float64)
    return unflatten({path: (total / len(steps)).astype(params[path].dtype) for path, total in sums.items()})


def average(source: Path, target: Path, steps: Sequence[int] = (), last: int = 3) -> list[int]:
    """Makes `target` a workdir that every command but `train` takes as it takes `source`, and that a run may start from
    (`init=`). It holds one checkpoint, under the number of the last of those it is the mean of.

    Args:
      source: the workdir of a run.
      target: what to make.
      steps: of the checkpoints to take; none: the newest `last`.

    Returns:
      The steps it took.

    Raises:
      UserError: there is no run, it lacks a checkpoint, or `target` holds something.
      RunFault: a checkpoint is damaged, or the disk is full; nothing is written.
    """
    record = read_config(source)
    with contextlib.closing(Checkpoints(source / "checkpoints")) as checkpoints:
        held = checkpoints.steps()
        taken = sorted(set(steps)) or held[-last:]
        if lacking := [step for step in taken if step not in held]:
            raise UserError(f"{source} holds no checkpoint {', '.join(map(str, lacking))}; it holds "
                            f"{', '.join(map(str, held)) or 'none'}")
        if len(taken) < 2:
            raise UserError(f"{source} holds checkpoint(s) {', '.join(map(str, held)) or 'none'}: a mean is of two or "
                            "more; keep more of them (checkpoint.keep), or give other --steps")
        averaged = record["config"].get("evaluation", {}).get("averaged", True)
        with workdir.new_directory(target) as draft:
            params = mean(checkpoints, taken, averaged)
            tokenizers.load(source / "tokenizer").save(draft / "tokenizer")
            with contextlib.closing(Checkpoints(draft / "checkpoints")) as made:
                made.save(taken[-1], {"params": params}, {"mean_of": taken})
            workdir.write_json(draft / CONFIG, {**record, "mean_of": {"run": str(source.absolute()), "steps": taken}})
    return taken
