"""Figures of sums over examples. Each takes [..., k] sums and returns [...]; what is not defined is 0."""

import numpy as np


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=np.asarray(denominator) != 0)


def mean_of(sums: np.ndarray) -> np.ndarray:
    """The mean: sums are of values and of weights."""
    return ratio(sums[..., 0], sums[..., 1])


def precision_of(sums: np.ndarray) -> np.ndarray:
    """Precision: sums are the numbers of correct, gold and predicted items, here and below."""
    return ratio(sums[..., 0], sums[..., 2])


def recall_of(sums: np.ndarray) -> np.ndarray:
    """Recall."""
    return ratio(sums[..., 0], sums[..., 1])


def f1_of(sums: np.ndarray) -> np.ndarray:
    """The harmonic mean of precision and recall."""
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])
