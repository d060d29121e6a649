"""The metrics of an objective over a set of batches."""

from collections.abc import Iterable
from functools import partial

import jax
from jax.sharding import Mesh

from lmrep.core.params import Tree
from lmrep.core.sharding import batch_sharding, use_mesh
from lmrep.objectives.base import Objective
from lmrep.training.inputs import HostBatch, global_batches, local_rows
from lmrep.training.state import carry_layout
from lmrep.training.step import evaluation_step


class MetricSums:
    """(sum, count) pairs added up in float64, so that any grouping gives one value."""

    def __init__(self, sums: dict[str, list[float]] | None = None):
        self.sums = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, metrics: dict[str, tuple]) -> None:
        """Adds host or device scalars."""
        for name, (total, count) in metrics.items():
            pair = self.sums.setdefault(name, [0.0, 0.0])
            pair[0] += float(total)
            pair[1] += float(count)

    def means(self) -> dict[str, float]:
        """The mean of each metric; those that nothing was counted for are left out."""
        return {name: total / count for name, (total, count) in sorted(self.sums.items()) if count}


class Evaluator:
    """Evaluates one objective on one mesh; compiles once."""

    def __init__(self, objective: Objective, mesh: Mesh, batch_size: int, seed: int, microbatches: int = 1):
        self._objective, self._mesh, self._batch_size = objective, mesh, batch_size
        self._sharding = batch_sharding(mesh)
        self.rows = local_rows(self._sharding, batch_size)
        self._step = jax.jit(partial(evaluation_step, objective=objective, seed=seed, microbatches=microbatches))

    def __call__(self, params: Tree, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Each metric's mean over all rows; `loss` is the mean over batches."""
        sums, pending = MetricSums(), []
        with use_mesh(self._mesh):
            start = partial(self._objective.carry, self._batch_size)
            carry = jax.jit(start, out_shardings=carry_layout(self._objective, self._batch_size, self._mesh))()
            for _, batch in global_batches(batches, self.rows, self._sharding, self._batch_size):
                metrics, carry = self._step(params, batch, carry)
                pending.append(metrics)
                if len(pending) > 8:  # the device stays a few batches ahead of the host
                    sums.add(jax.device_get(pending.pop(0)))
            for metrics in pending:
                sums.add(jax.device_get(metrics))
        return sums.means()
