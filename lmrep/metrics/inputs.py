"""Checks of gold and predicted values that the metrics of tasks share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError


def check_lengths(gold: Sequence, predicted: Sequence) -> None:
    """Raises UserError if there are no examples, or the numbers of gold and predicted values differ."""
    if len(gold) != len(predicted):
        raise UserError(f"there are {len(gold):,} gold values and {len(predicted):,} predictions; expected one "
                        "prediction for each example")
    if not len(gold):
        raise UserError("there are no examples; a metric needs at least one")


def labels(gold: Sequence, predicted: Sequence) -> tuple[np.ndarray, np.ndarray, list]:
    """Maps labels to indices.

    Args:
      gold, predicted: [n] labels, all strings or all numbers.

    Returns:
      (gold int64 [n], predicted int64 [n], the labels that occur, sorted), the first two as indices into the third.

    Raises:
      UserError: there are no labels, their numbers differ, or strings and numbers are mixed.
    """
    check_lengths(gold, predicted)
    values = [_plain(value) for value in (*gold, *predicted)]
    numbers = all(isinstance(value, int | float) for value in values)
    if not numbers and not all(isinstance(value, str) for value in values):
        raise UserError("some labels are numbers and others are text; expected the same type of all gold and predicted "
                        "labels")
    names, indices = np.unique(np.asarray(values), return_inverse=True)
    return indices[:len(gold)], indices[len(gold):], names.tolist()


def numbers(gold: Sequence, predicted: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Converts numbers to float64 [n] and float64 [n]. Raises UserError for one that is not a finite number."""
    check_lengths(gold, predicted)
    return _finite(gold, "gold value"), _finite(predicted, "prediction")


def _finite(values: Sequence, name: str) -> np.ndarray:
    for number, value in enumerate(values, 1):
        value = _plain(value)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{name} {number:,} is {value!r}; expected a finite number")
    return np.asarray(values, np.float64)


def _plain(value: Any) -> Any:
    """Converts a NumPy or JAX scalar to a Python value."""
    return value.item() if hasattr(value, "item") else value
