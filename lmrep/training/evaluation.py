"""Computes the metrics of an objective over a set of batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from lmrep.core.errors import RunFault
from lmrep.core.params import Tree
from lmrep.core.sharding import batch_sharding, replicated, use_mesh
from lmrep.objectives.base import Metrics, Objective
from lmrep.training.faults import MORE_TARGETS
from lmrep.training.inputs import HostBatch, local_indices, to_global
from lmrep.training.state import initial_carry, with_shared
from lmrep.training.step import evaluation_step

IN_FLIGHT = 8  # batches that the devices may be ahead of the host


class NoTargets(RunFault):
    """The evaluation data has no targets for a term of the loss."""


class MetricSums:
    """Accumulates (sum, count) pairs of metrics in float64, so that means do not depend on how examples are batched."""

    def __init__(self, sums: dict[str, list[float]] | None = None):
        self.sums = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, metrics: dict[str, tuple]) -> None:
        """Adds {name: (sum, count)}, host or device scalars."""
        for name, (total, count) in metrics.items():
            pair = self.sums.setdefault(name, [0.0, 0.0])
            pair[0] += float(total)
            pair[1] += float(count)

    def means(self) -> dict[str, float]:
        """Returns {name: mean}, sorted by name, without metrics whose count is zero."""
        return {name: total / count for name, (total, count) in sorted(self.sums.items()) if count}


def _in_flight(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yields the outputs of a step on the host, while the devices are up to `IN_FLIGHT` batches ahead."""
    pending = deque()
    for output in outputs:
        pending.append(output)
        if len(pending) > IN_FLIGHT:
            yield jax.device_get(pending.popleft())
    yield from map(jax.device_get, pending)


class Evaluator:
    """Evaluates one objective on one mesh; compiles once.

    Args:
      objective: the objective.
      mesh: the devices.
      batch_size: examples of a batch, over all processes.
      seed: the seed of the random draws, such as masks. For one seed, the draws of an example are the same in all
        evaluations, whatever the seed of the run.
      microbatches: the number of chunks that a batch is computed in.

    Attributes:
      indices: the examples of a batch that this process reads, as `local_indices` returns them.
    """

    def __init__(self, objective: Objective, mesh: Mesh, batch_size: int, seed: int, microbatches: int = 1):
        self._objective, self._mesh, self._batch_size = objective, mesh, batch_size
        self._sharding = batch_sharding(mesh)
        self.indices = local_indices(self._sharding, batch_size)
        self._step = jax.jit(partial(evaluation_step, objective=objective, seed=seed, microbatches=microbatches))

    def __call__(self, params: Tree, batches: Iterable[HostBatch], shared: Tree = None) -> dict[str, float]:
        """Returns the mean of each metric over all batches, and `loss`.

        `loss` is the weighted sum of the means of the objective's `terms`: the loss of all examples as one batch. It
        does not depend on the batch size, and nor do the other metrics, unless examples continue each other or `loss`
        reads `carry.shared`. For an objective without `terms`, it is the mean of the batches' losses, weighted by their
        numbers of examples.

        Args:
          params: the parameters, as for `Objective.loss`.
          batches: the examples of each batch at `indices`.
          shared: the run's `carry.shared`, such as running statistics; by default the objective's initial value.
            `carry.per_example` always starts at its initial value.

        Raises:
          NoTargets: a term of the loss has no target in all batches.
        """
        def steps() -> Iterator[Metrics]:
            carry = initial_carry(self._objective, self._batch_size, self._mesh, shared)
            for batch in batches:
                inputs = to_global(batch, self.indices, self._sharding, self._batch_size)
                metrics, carry = self._step(params, inputs, carry)
                yield metrics

        sums = MetricSums()
        with use_mesh(self._mesh):
            for metrics in _in_flight(steps()):
                sums.add(metrics)
        means = sums.means()
        terms = {name: weight for name, weight in self._objective.terms.items() if weight}
        if missing := [name for name in terms if name not in means]:
            raise NoTargets(f"the evaluated text has no targets for {', '.join(missing)}: nothing in it is predicted. "
                            f"{MORE_TARGETS}")
        if terms:
            means["loss"] = sum(weight * means[name] for name, weight in terms.items())
        return means


class Predictor:
    """Computes an objective's `predict` on one mesh; compiles once for each length of batches.

    Args:
      predict: of the objective.
      mesh: its devices.
      batch_size: examples of a batch, over all processes.
      score: outputs of all batches -> metrics, for `__call__`.

    Attributes:
      mesh: the devices.
      indices: the examples of a batch that this process reads, as `local_indices` returns them.
    """

    def __init__(self, predict: Callable, mesh: Mesh, batch_size: int, score: Callable | None = None):
        self.mesh, self._batch_size, self._score = mesh, batch_size, score
        self._sharding = batch_sharding(mesh)
        self.indices = local_indices(self._sharding, batch_size)

        def step(params: Tree, batch: dict) -> dict:
            return predict(params, batch) | {name: batch[name] for name in ("unit", "first", "last")}

        self._step = jax.jit(step, out_shardings=replicated(mesh))

    def outputs(self, params: Tree, batches: Iterable[HostBatch]) -> list[dict[str, np.ndarray]]:
        """Returns for each batch the arrays of `predict` and the batch's `unit`, `first` and `last`, the same on every
        process."""
        with use_mesh(self.mesh):
            return [*_in_flight(self._step(params, to_global(batch, self.indices, self._sharding, self._batch_size))
                                for batch in batches)]

    def __call__(self, params: Tree, batches: Iterable[HostBatch], shared: Tree = None) -> dict[str, float]:
        """Returns `score` of the outputs of all batches, with the arguments of `Evaluator.__call__`."""
        return self._score(self.outputs(with_shared(params, shared), batches))
