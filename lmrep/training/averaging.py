"""Parameters as averages: over the steps of a run (`optimizer.ema`), and over its checkpoints."""

from collections.abc import Sequence

import numpy as np

from lmrep.core.params import Tree, flatten, unflatten
from lmrep.training.checkpoints import Checkpoints

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
