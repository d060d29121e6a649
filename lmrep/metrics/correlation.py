"""Pearson's and Spearman's correlation, for tasks with real numbers as labels, such as STS-B."""

from collections.abc import Sequence

import numpy as np

from lmrep.metrics import inputs


def pearson(gold: Sequence, predicted: Sequence) -> float:
    """Pearson's correlation; 0 where the gold values or the predictions are constant, for which it is not defined.

    Args:
      gold, predicted: [n] finite numbers.

    Raises:
      UserError: there are none, other numbers of them, or one is not a finite number.
    """
    from scipy import stats

    a, b = inputs.numbers(gold, predicted)
    return 0.0 if _constant(a) or _constant(b) else float(stats.pearsonr(a, b).statistic)


def spearman(gold: Sequence, predicted: Sequence) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where either is constant. Arguments as of `pearson`."""
    from scipy import stats

    a, b = inputs.numbers(gold, predicted)
    return 0.0 if _constant(a) or _constant(b) else pearson(stats.rankdata(a), stats.rankdata(b))


def moments(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """float64 [n, 6]: 1, x, y, x², y² and xy of each example, x and y standardised over all examples."""
    x, y = (np.zeros(len(a)) if _constant(a) else (a - a.mean()) / a.std() for a in inputs.numbers(gold, predicted))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], 1)


def pearson_of(sums: np.ndarray) -> np.ndarray:
    """[..., 6] -> [...]: Pearson's correlation of sums of `moments`."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    variances = (xx / n - (x / n) ** 2, yy / n - (y / n) ** 2)
    defined = np.minimum(*variances) > 1e-12  # rounding leaves this much of the variance of equal values
    scale = np.sqrt(np.where(defined, variances[0] * variances[1], 1))
    return np.where(defined, (xy / n - x * y / n**2) / scale, 0)


def _constant(values: np.ndarray) -> bool:
    return bool(np.all(values == values[0]))
