"""What differences between rows, over pairs of runs of one seed, say about a claim."""

import math
import statistics
from collections.abc import Sequence

from lmrep.metrics.paired import Difference, quantile

MAX_SEEDS = 1000  # that are advised
REPRODUCED, ORDERING, UNRESOLVED, CONTRADICTED = (
    "reproduced", "ordering only", "not resolved at this scale", "contradicted")


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


def seeds_to_resolve(
    values: Sequence[float], others: Sequence[float], comparisons: int = 1, boundary: float = 0.0
) -> int | None:
    """Returns with how many seeds the interval would leave out `boundary` if mean and deviation of the differences
    stayed as they are; None for more than 1,000 or fewer than two pairs."""
    differences = [value - other - boundary for value, other in zip(values, others, strict=True)]
    if len(differences) < 2 or not (mean := abs(statistics.fmean(differences))):
        return None
    deviation = statistics.stdev(differences)
    return next((n for n in range(2, MAX_SEEDS + 1)
                 if quantile(n, comparisons) * deviation / math.sqrt(n) < mean), None)
