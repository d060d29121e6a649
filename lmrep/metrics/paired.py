"""Differences between two settings over pairs of runs of one seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy import stats

CONFIDENCE = 0.95  # of all intervals of a table together


class Difference(NamedTuple):
    """The mean of paired differences and the ends of its interval; nan where there are fewer than two pairs."""

    mean: float
    low: float
    high: float


def difference(values: Sequence[float], others: Sequence[float], comparisons: int = 1) -> Difference:
    """Returns the mean of values - others and its interval by Student's t.

    Args:
      values, others: of the same seeds, in the same order.
      comparisons: the intervals of a table. Each has the level 1 - 0.05 / comparisons (Bonferroni), so that all of
        them contain their differences with a probability of at least 95 %.

    Raises ValueError for different numbers of values, or none.
    """
    differences = [value - other for value, other in zip(values, others, strict=True)]
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return Difference(mean, math.nan, math.nan)
    half = quantile(n, comparisons) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half)


def differ(values: Mapping[int, float], others: Mapping[int, float], comparisons: int = 1) -> bool | None:
    """Returns whether the interval of the difference of {seed: value} leaves out 0, over the seeds that both have; None
    with fewer than two."""
    seeds = sorted(values.keys() & others.keys())
    if len(seeds) < 2:
        return None
    found = difference([values[seed] for seed in seeds], [others[seed] for seed in seeds], comparisons)
    return found.low > 0 or found.high < 0


def quantile(n: int, comparisons: int) -> float:
    """Returns the factor of the standard error for n pairs."""
    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / comparisons / 2, n - 1))
