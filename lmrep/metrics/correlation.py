"""Pearson's and Spearman's correlation, for tasks with real numbers as labels, such as STS-B.

Gold and predicted values are [n] finite numbers; UserError is raised for others. The correlation of constant values,
which is not defined, is 0.
"""

from collections.abc import Sequence

import numpy as np

from lmrep.metrics import inputs


def spearman(gold: Sequence, predicted: Sequence) -> float:
    """Computes Spearman's rank correlation; ties have their mean rank."""
    from scipy.stats import rankdata

    return float(pearson_of(moments(*map(rankdata, inputs.numbers(gold, predicted))).sum(0)))


def moments(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """Returns float64 [n, 6]: 1, x, y, x², y² and xy of each example, x and y standardised over all examples."""
    x, y = (np.zeros(len(a)) if np.all(a == a[0]) else (a - a.mean()) / a.std()
            for a in inputs.numbers(gold, predicted))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], 1)


def pearson_of(sums: np.ndarray) -> np.ndarray:
    """Computes Pearson's correlation [...] from sums [..., 6] of `moments`."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    variances = (xx / n - (x / n) ** 2, yy / n - (y / n) ** 2)
    defined = np.minimum(*variances) > 1e-12  # rounding leaves this much of the variance of equal values
    scale = np.sqrt(np.where(defined, variances[0] * variances[1], 1))
    return np.where(defined, (xy / n - x * y / n**2) / scale, 0)
