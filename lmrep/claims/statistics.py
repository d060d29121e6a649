"""Differences between rows over pairs of runs of one seed, and what they say about a claim."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

CONFIDENCE = 0.95  # of all intervals of a table together
MAX_SEEDS = 1000  # that are advised
REPRODUCED, ORDERING, UNRESOLVED, CONTRADICTED = (
    "reproduced", "ordering only", "not resolved at this scale", "contradicted")


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
    half = _quantile(n, comparisons) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half)


def verdict(found: Difference, sign: int, margin: float = 0.0) -> str:
    """Judges the claim that a difference has a sign.

    Returns:
      REPRODUCED if the whole interval is on the claimed side of 0, or of `margin` beyond 0; CONTRADICTED if it is on
      the other side; ORDERING if only the mean is on the claimed side; else UNRESOLVED.
    """
    low, high = sorted((sign * found.low, sign * found.high)) if math.isfinite(found.low) else (math.nan, math.nan)
    if low > -margin:
        return REPRODUCED
    if high < -margin:
        return CONTRADICTED
    return ORDERING if sign * found.mean > -margin and math.isfinite(found.low) else UNRESOLVED


def seeds_to_resolve(values: Sequence[float], others: Sequence[float], comparisons: int = 1) -> int | None:
    """Returns with how many seeds the interval would leave out 0 if mean and deviation of the differences stayed as
    they are; None for more than 1,000 or fewer than two pairs."""
    differences = [value - other for value, other in zip(values, others, strict=True)]
    if len(differences) < 2 or not (mean := abs(statistics.fmean(differences))):
        return None
    deviation = statistics.stdev(differences)
    return next((n for n in range(2, MAX_SEEDS + 1)
                 if _quantile(n, comparisons) * deviation / math.sqrt(n) < mean), None)


def _quantile(n: int, comparisons: int) -> float:
    """Returns the factor of the standard error for n pairs."""
    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / comparisons / 2, n - 1))
