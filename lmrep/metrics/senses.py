"""Metrics of word senses, as the scorer of Raganato et al. (2017): gold values are the right senses of each word, and
predicted ones the answers, none or several. An answer that is one of the right senses is right; of several answers each
counts for its share. Words without an answer lower recall alone."""

from collections.abc import Sequence

import numpy as np

from lmrep.metrics import inputs
from lmrep.metrics.sums import f1_of, precision_of, recall_of

Senses = Sequence[Sequence[str]]


def precision(gold: Senses, predicted: Senses) -> float:
    """The fraction of right answers; 0 without any. Raises UserError where there are no words, or other numbers of gold
    and predicted values."""
    return float(precision_of(sense_sums(gold, predicted).sum(0)))


def recall(gold: Senses, predicted: Senses) -> float:
    """The fraction of words that have a right answer. Errors as of `precision`."""
    return float(recall_of(sense_sums(gold, predicted).sum(0)))


def f1(gold: Senses, predicted: Senses) -> float:
    """The harmonic mean of precision and recall. Errors as of `precision`."""
    return float(f1_of(sense_sums(gold, predicted).sum(0)))


def sense_sums(gold: Senses, predicted: Senses) -> np.ndarray:
    """float64 [n, 3]: the fraction of a word's answers that are right, 1, and whether there is an answer."""
    inputs.check_lengths(gold, predicted)
    answers = [({*right}, {*given}) for right, given in zip(gold, predicted, strict=True)]
    return np.array([[len(right & given) / max(1, len(given)), 1, bool(given)] for right, given in answers], np.float64)
