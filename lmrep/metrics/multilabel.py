"""Metrics of multi-label classification: gold and predicted values are a list of labels for each example.

Values are those of scikit-learn, over the labels that are gold or predicted at least once.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lmrep.metrics import inputs
from lmrep.metrics.classification import macro_f1_of
from lmrep.metrics.sums import f1_of, mean_of

LabelSets = Sequence[Sequence[str]]


def micro_f1(gold: LabelSets, predicted: LabelSets) -> float:
    """F1 of all pairs of an example and a label; 0 where there is none. Raises UserError where there are no examples,
    or other numbers of gold and predicted values."""
    return float(f1_of(micro_sums(gold, predicted).sum(0)))


def macro_f1(gold: LabelSets, predicted: LabelSets) -> float:
    """The mean of F1 over labels. Errors as of `micro_f1`."""
    return float(macro_f1_of(label_sums(gold, predicted).sum(0)))


def subset_accuracy(gold: LabelSets, predicted: LabelSets) -> float:
    """The fraction of examples with all labels right. Errors as of `micro_f1`."""
    return float(mean_of(subset_sums(gold, predicted).sum(0)))


def micro_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """float64 [n, 3]: the numbers of true positives, of gold and of predicted labels."""
    inputs.check_lengths(gold, predicted)
    pairs = [({*a}, {*b}) for a, b in zip(gold, predicted, strict=True)]
    return np.array([[len(a & b), len(a), len(b)] for a, b in pairs], np.float64)


def label_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """float64 [n, 3 c], c labels: whether each is a true positive, gold, predicted, for each label in turn."""
    inputs.check_lengths(gold, predicted)
    names = sorted({label for labels in (*gold, *predicted) for label in labels})
    a, b = (np.array([[name in labels for name in names] for labels in values], bool).reshape(len(gold), -1)
            for values in (gold, predicted))
    return np.stack([a & b, a, b], 2).reshape(len(gold), -1).astype(np.float64)


def subset_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """float64 [n, 2]: whether all labels are right, and 1."""
    inputs.check_lengths(gold, predicted)
    return np.array([[{*a} == {*b}, 1] for a, b in zip(gold, predicted, strict=True)], np.float64)


def constant_micro_f1(gold: LabelSets) -> float:
    """The best micro-averaged F1 of predicting the same labels for every example: the k most frequent ones, for the
    best k."""
    counts = np.array([count for _, count in Counter(label for labels in gold for label in {*labels}).most_common()])
    k = np.arange(1, len(counts) + 1)
    return float(np.max(2 * np.cumsum(counts) / (counts.sum() + k * len(gold)), initial=0.0))


def constant_subset_accuracy(gold: LabelSets) -> float:
    """The fraction of examples with the most frequent set of labels."""
    return max(Counter(frozenset(labels) for labels in gold).values()) / len(gold)
