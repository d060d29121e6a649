"""p-values for tests of what is drawn at random.

A test that holds a distribution against what it should be rejects where p < REJECT, with fixed seeds; and beside each
stands a test that plants an error and is rejected by the same check.
"""

import numpy as np
from scipy import stats

REJECT = 1e-4


def fits(counts, shares) -> float:
    """Pearson's test that events counted `counts` have the probabilities `shares` (normalised here). An event that
    cannot happen must not have happened."""
    counts, shares = np.asarray(counts, float).ravel(), np.asarray(shares, float).ravel()
    if counts[shares == 0].any():
        return 0.0
    counts, shares = counts[shares > 0], shares[shares > 0]
    if len(counts) == 1:
        return 1.0
    return float(stats.chisquare(counts, counts.sum() * shares / shares.sum()).pvalue)


def uniform(counts) -> float:
    """Pearson's test that events counted `counts` are equally likely."""
    return fits(counts, np.ones(np.size(counts)))


def rates(hits, trials, rate) -> float:
    """Test that each of many independent counts `hits` is binomial(`trials`, `rate`), by the sum of their squared
    standard scores. Where the rate is 0 or 1 the count must be exact."""
    hits, trials, rate = (np.ravel(x).astype(float) for x in np.broadcast_arrays(hits, trials, rate))
    variance = trials * rate * (1 - rate)
    if (hits != trials * rate)[variance == 0].any():
        return 0.0
    scores = ((hits - trials * rate)[variance > 0]) ** 2 / variance[variance > 0]
    return float(stats.chi2.sf(scores.sum(), len(scores)))


def independent(ones, others) -> float:
    """Pearson's test that two series of the same length, of small whole numbers, do not depend on each other."""
    ones, others = np.ravel(ones).astype(np.int64), np.ravel(others).astype(np.int64)
    shape = ones.max() + 1, others.max() + 1
    table = np.bincount(ones * shape[1] + others, minlength=shape[0] * shape[1]).reshape(shape)
    table = table[table.any(1)][:, table.any(0)]
    return float(stats.chi2_contingency(table).pvalue)


def least(p_values) -> float:
    """The least of several p-values, times their number (Bonferroni): one p-value for all of them."""
    p_values = list(p_values)
    return min(1.0, len(p_values) * min(p_values))
