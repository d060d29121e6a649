"""Metrics of classification: accuracy, F1, macro-F1, the Matthews correlation.

Values are those of scikit-learn. The sums per example give the same values for the bootstrap.
"""

from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics import inputs
from lmrep.metrics.sums import f1_of, ratio


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """The fraction of examples whose label is predicted.

    Args:
      gold, predicted: [n] labels, strings or numbers.

    Raises:
      UserError: there are no examples, other numbers of gold and predicted labels, or a mixture of types.
    """
    a, b, _ = inputs.labels(gold, predicted)
    return float(np.mean(a == b))


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """The Matthews correlation, between -1 and 1, for two or more classes (Gorodkin 2004).

    It is 0 where the gold labels or the predictions are constant, for which it is not defined. Arguments and errors
    are those of `accuracy`.
    """
    from sklearn.metrics import matthews_corrcoef

    a, b, names = inputs.labels(gold, predicted)
    return float(matthews_corrcoef(a, b)) if len(names) > 1 else 0.0


def f1(gold: Sequence, predicted: Sequence, positive: object = 1) -> float:
    """F1 of the class `positive`; 0 where that class is neither gold nor predicted.

    Arguments and errors are those of `accuracy`. `positive` is 1 by default, as in MRPC and QQP; it is an error where
    the labels are of another type than `positive`.
    """
    from sklearn.metrics import f1_score

    a, b = _is_positive(gold, predicted, positive)
    return float(f1_score(a, b, zero_division=0))


def macro_f1(gold: Sequence, predicted: Sequence) -> float:
    """The mean of F1 over the classes that are gold or predicted at least once. Arguments as of `accuracy`."""
    from sklearn.metrics import f1_score

    a, b, _ = inputs.labels(gold, predicted)
    return float(f1_score(a, b, average="macro", zero_division=0))


def correct_sums(gold: Sequence, predicted: Sequence) -> np.ndarray:
    """float64 [n, 2]: whether each prediction is right, and 1."""
    a, b, _ = inputs.labels(gold, predicted)
    return np.stack([a == b, np.ones(len(a))], 1).astype(np.float64)


def f1_sums(gold: Sequence, predicted: Sequence, positive: object = 1) -> np.ndarray:
    """float64 [n, 3]: whether each example is a true positive, gold positive, predicted positive."""
    a, b = _is_positive(gold, predicted, positive)
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
    """[..., 3 c] -> [...]: the Matthews correlation."""
    sums = sums.reshape(*sums.shape[:-1], -1, 3)
    correct, gold, predicted = sums[..., 0].sum(-1), sums[..., 1], sums[..., 2]
    n = gold.sum(-1)
    covariance = correct * n - np.sum(gold * predicted, -1)
    return ratio(covariance, np.sqrt((n**2 - np.sum(gold**2, -1)) * (n**2 - np.sum(predicted**2, -1))))


def _is_positive(gold: Sequence, predicted: Sequence, positive: object) -> tuple[np.ndarray, np.ndarray]:
    a, b, names = inputs.labels(gold, predicted)
    if isinstance(names[0], str) != isinstance(positive, str):
        raise UserError(f"the positive class is {positive!r}, and the labels are {', '.join(map(repr, names[:5]))}; "
                        "choose one of these as the positive class")
    index = names.index(positive) if positive in names else -1
    return a == index, b == index
