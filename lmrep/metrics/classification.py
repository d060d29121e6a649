"""Metrics of classification: accuracy, precision, recall, F1, macro-F1, the Matthews correlation.

Values equal scikit-learn's. Gold and predicted values are [n] labels, strings or numbers; UserError is raised for a
mixture of types. `*_sums` computes statistics of each example, and `*_of` a metric from their sums over examples,
[..., k] -> [...]; a metric that is not defined is 0.
"""

from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics import inputs


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns numerator / denominator, and 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=np.asarray(denominator) != 0)


def mean_of(sums: np.ndarray) -> np.ndarray:
    """Computes the mean [...] from the sums [..., 2] of values and of weights, and recall from the numbers [..., 3] of
    correct, gold and predicted items."""
    return ratio(sums[..., 0], sums[..., 1])


def precision_of(sums: np.ndarray) -> np.ndarray:
    """Computes precision [...] from the numbers [..., 3] of correct, gold and predicted items."""
    return ratio(sums[..., 0], sums[..., 2])


def f1_of(sums: np.ndarray) -> np.ndarray:
    """Computes F1 [...] from the numbers [..., 3] of correct, gold and predicted items."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def correct_sums(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """Returns float64 [n, 2]: 1 for each correct prediction, else 0; and 1 for each example."""
    a, b, _ = inputs.labels(gold, predicted)
    return np.stack([a == b, np.ones(len(a))], 1).astype(np.float64)


def f1_sums(gold: Sequence, predicted: Sequence, positive: object = 1) -> np.ndarray:
    """Returns float64 [n, 3]: whether each example is a true positive, gold positive, predicted positive.

    The class `positive` is 1 by default, as in MRPC and QQP. Raises UserError if the labels are of another type.
    """
    a, b, names = inputs.labels(gold, predicted)
    if isinstance(names[0], str) != isinstance(positive, str):
        raise UserError(f"the positive class is {positive!r}, and the labels are {', '.join(map(repr, names[:5]))}; "
                        "choose one of these as the positive class")
    index = names.index(positive) if positive in names else -1
    a, b = a == index, b == index
    return np.stack([a & b, a, b], 1).astype(np.float64)


def class_sums(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """Returns float64 [n, 3 c]: the three columns of `f1_sums` for each of the c classes."""
    a, b, names = inputs.labels(gold, predicted)
    classes = np.arange(len(names))
    a, b = a[:, None] == classes, b[:, None] == classes
    return np.stack([a & b, a, b], 2).reshape(len(a), -1).astype(np.float64)


def macro_f1_of(sums: np.ndarray) -> np.ndarray:
    """Computes the mean F1 [...] of the classes that occur from sums [..., 3 c] of `class_sums`."""
    sums = sums.reshape(*sums.shape[:-1], -1, 3)
    occurs = sums[..., 1] + sums[..., 2] > 0
    return ratio(np.sum(f1_of(sums) * occurs, -1), np.sum(occurs, -1))


def matthews_of(sums: np.ndarray) -> np.ndarray:
    """Computes the Matthews correlation [...], -1 to 1, of two or more classes (Gorodkin 2004) from sums [..., 3 c] of
    `class_sums`. It is 0 where the gold labels or the predictions are constant."""
    sums = sums.reshape(*sums.shape[:-1], -1, 3)
    correct, gold, predicted = sums[..., 0].sum(-1), sums[..., 1], sums[..., 2]
    n = gold.sum(-1)
    covariance = correct * n - np.sum(gold * predicted, -1)
    return ratio(covariance, np.sqrt((n**2 - np.sum(gold**2, -1)) * (n**2 - np.sum(predicted**2, -1))))
