"""Bootstrap intervals of metrics (Efron 1979): how far a figure would move with another test set of the same size.

They say nothing about the variation between runs with other seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics.inputs import check_lengths
from lmrep.metrics.tasks import TaskMetric


def bootstrap(
    metric: TaskMetric, gold: Sequence, predicted: Sequence, samples: int = 1000, seed: int = 0, **options: Any
) -> tuple[float, float]:
    """Computes the 95 % percentile interval of a metric over resamples of the examples.

    It is fast for a metric with sums; the function of any other is called once per resample. The same arguments give
    the same interval.

    Args:
      metric: such as a value of `TASK_METRICS`.
      gold, predicted: [n] values, one for each example; examples are drawn with replacement.
      samples: the number of resamples.
      seed: determines the draws.
      **options: passed to the metric.

    Returns:
      (low, high): the 2.5 % and 97.5 % quantiles.

    Raises:
      UserError: there are no examples or no resamples, or the metric raises it.
    """
    check_lengths(gold, predicted)
    if samples < 1:
        raise UserError(f"the number of bootstrap samples is {samples}; expected at least 1")
    values = resampled(metric, gold, predicted, samples, seed, **options)
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def resampled(
    metric: TaskMetric, gold: Sequence, predicted: Sequence, samples: int, seed: int, **options: Any
) -> np.ndarray:
    """Computes the metric of each resample, float64 [samples]. Arguments are those of `bootstrap`."""
    rng, n = np.random.default_rng(seed), len(gold)
    if metric.sums:
        per_example = metric.sums(gold, predicted, **options)
        sums = [np.bincount(rng.integers(n, size=n), minlength=n) @ per_example for _ in range(samples)]
        return metric.figure(np.stack(sums))
    draws = (rng.integers(n, size=n) for _ in range(samples))
    return np.asarray([metric.function([gold[i] for i in draw], [predicted[i] for i in draw], **options)
                       for draw in draws])
