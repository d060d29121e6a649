"""Metrics of classification: accuracy, F1, macro-F1, the Matthews correlation. Values equal scikit-learn's.

Gold and predicted values are [n] labels, strings or numbers; UserError is raised for a mixture of types.
"""

from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics import inputs
from lmrep.metrics.sums import f1_of, ratio


def correct_sums(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """float64 [n, 2]: whether each prediction is right, and 1."""
    a, b, _ = inputs.labels(gold, predicted)
    return np.stack([a == b, np.ones(len(a))], 1).astype(np.float64)


def f1_sums(gold: Sequence, predicted: Sequence, positive: object = 1) -> np.ndarray:
    """float64 [n, 3]: whether each example is a true positive, gold positive, predicted positive.

    `positive` is 1 by default, as in MRPC and QQP. Raises UserError where the labels are of another type.
    """
    a, b, names = inputs.labels(gold, predicted)
    if isinstance(names[0], str) != isinstance(positive, str):
        raise UserError(f"the positive class is {positive!r}, and the labels are {', '.join(map(repr, names[:5]))}; "
                        "choose one of these as the positive class")
    index = names.index(positive) if positive in names else -1
    a, b = a == index, b == index
    return np.stack([a & b, a, b], 1).astype(np.float64)


def class_sums(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """float64 [n, 3 c], c classes: as `f1_sums`, for each class in turn."""
    a, b, names = inputs.labels(gold, predicted)
    classes = np.arange(len(names))
    a, b = a[:, None] == classes, b[:, None] == classes
    return np.stack([a & b, a, b], 2).reshape(len(a), -1).astype(np.float64)


def macro_f1_of(sums: np.ndarray) -> np.ndarray:
    """[..., 3 c] -> [...]: the mean of F1 over the classes that occur."""
    sums = sums.reshape(*sums.shape[:-1], -1, 3)
    occurs = sums[..., 1] + sums[..., 2] > 0
    return ratio(np.sum(f1_of(sums) * occurs, -1), np.sum(occurs, -1))


def matthews_of(sums: np.ndarray) -> np.ndarray:
    """[..., 3 c] -> [...]: the Matthews correlation, -1 to 1, for two or more classes (Gorodkin 2004).

    It is 0 where the gold labels or the predictions are constant, for which it is not defined.
    """
    sums = sums.reshape(*sums.shape[:-1], -1, 3)
    correct, gold, predicted = sums[..., 0].sum(-1), sums[..., 1], sums[..., 2]
    n = gold.sum(-1)
    covariance = correct * n - np.sum(gold * predicted, -1)
    return ratio(covariance, np.sqrt((n**2 - np.sum(gold**2, -1)) * (n**2 - np.sum(predicted**2, -1))))
