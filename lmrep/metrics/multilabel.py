"""Metrics of sets of labels, for multi-label classification and word senses. Gold and predicted values are a list of
labels for each example."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

LabelSets = Sequence[Sequence[str]]


def micro_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """Returns float64 [n, 3]: the numbers of correct, gold and predicted labels. Micro-averaged F1 equals
    scikit-learn's; it is 0 without labels."""
    pairs = [({*a}, {*b}) for a, b in zip(gold, predicted, strict=True)]
    return np.array([[len(a & b), len(a), len(b)] for a, b in pairs], np.float64)


def label_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """Returns float64 [n, 3 c]: for each of the c labels that occur whether it is a true positive, gold, predicted.
    Macro-averaged F1 equals scikit-learn's."""
    names = sorted({label for labels in (*gold, *predicted) for label in labels})
    a, b = (np.array([[name in labels for name in names] for labels in values], bool).reshape(len(gold), -1)
            for values in (gold, predicted))
    return np.stack([a & b, a, b], 2).reshape(len(gold), -1).astype(np.float64)


def subset_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """Returns float64 [n, 2]: whether all labels of an example are right, and 1."""
    return np.array([[{*a} == {*b}, 1] for a, b in zip(gold, predicted, strict=True)], np.float64)


def constant_micro_f1(gold: LabelSets) -> float:
    """Computes the best micro-averaged F1 of predicting the k most frequent labels for every example, over all k."""
    counts = np.array([count for _, count in Counter(label for labels in gold for label in {*labels}).most_common()])
    k = np.arange(1, len(counts) + 1)
    return float(np.max(2 * np.cumsum(counts) / (counts.sum() + k * len(gold)), initial=0.0))


def constant_subset_accuracy(gold: LabelSets) -> float:
    """Computes the fraction of examples with the most frequent set of labels."""
    return max(Counter(frozenset(labels) for labels in gold).values()) / len(gold)


def sense_sums(gold: LabelSets, predicted: LabelSets) -> np.ndarray:
    """Returns float64 [n, 3]: the fraction of a word's answers that are right, 1, and whether there is an answer.

    Precision, recall and F1 equal the scorer of Raganato et al. (2017): an answer that is one of the right
    senses is right; of several answers each counts for its share. Words without an answer lower recall alone.
    """
    pairs = [({*right}, {*answers}) for right, answers in zip(gold, predicted, strict=True)]
    return np.array([[len(right & answers) / max(1, len(answers)), 1, bool(answers)] for right, answers in pairs],
                    np.float64)
