"""Metrics of tasks that do not add up over batches, by name: each is computed from all examples at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lmrep.metrics import (
    CORRELATION,
    Metric,
    accuracy_metric,
    answers,
    classification,
    correlation,
    entities,
    inputs,
    multilabel,
    translation,
)
from lmrep.metrics.classification import f1_of, mean_of, precision_of

Statistics = Callable[..., np.ndarray]  # (gold, predicted, **options) -> float64 [n, k], a row for each example
Figure = Callable[[np.ndarray], np.ndarray]  # sums of statistics over examples [..., k] -> the metric [...]


class TaskMetric(NamedTuple):
    """A metric of gold and predicted values."""

    metric: Metric  # its title, unit, direction and format
    function: Callable[..., float]  # (gold, predicted, **options) -> its value
    sums: Statistics | None = None  # statistics whose sums over examples determine the metric; None: there are none
    figure: Figure | None = None  # computes the metric from these sums


def of_sums(metric: Metric, statistics: Statistics, figure: Figure) -> TaskMetric:
    """Returns a metric that `figure` computes from the sums of `statistics` over examples. The metric's function raises
    UserError if there are no examples, or the numbers of gold and predicted values differ."""
    def function(gold: Sequence, predicted: Sequence, **options: Any) -> float:
        inputs.check_lengths(gold, predicted)
        return float(figure(statistics(gold, predicted, **options).sum(0)))

    return TaskMetric(metric, function, statistics, figure)


def _weighted(scores: Statistics) -> Statistics:
    """Returns statistics float64 [n, 2]: the score of each example, and 1."""
    return lambda gold, predicted, **options: np.stack([scores(gold, predicted, **options), np.ones(len(gold))], 1)


def _fraction(title: str, unit: str) -> Metric:
    return Metric(title, unit, True, ".2%")


def _correlation(title: str) -> Metric:
    return Metric(title, CORRELATION, True, ".4f")


def _precision_recall_f1(prefix: str, titles: Sequence[str], statistics: Statistics) -> dict[str, TaskMetric]:
    """Returns the metrics PREFIX_precision, PREFIX_recall and PREFIX_f1; `statistics` counts correct, gold and
    predicted items."""
    kinds = (("precision", "precision", precision_of), ("recall", "recall", mean_of), ("f1", "F1", f1_of))
    return {f"{prefix}_{name}": of_sums(_fraction(title, unit), statistics, figure)
            for (name, unit, figure), title in zip(kinds, titles, strict=True)}


TASK_METRICS: Mapping[str, TaskMetric] = {
    "accuracy": of_sums(accuracy_metric("Accuracy"), classification.correct_sums, mean_of),
    "matthews": of_sums(_correlation("Matthews correlation"), classification.class_sums, classification.matthews_of),
    "f1": of_sums(_fraction("F1 of the positive class", "F1"), classification.f1_sums, f1_of),
    "macro_f1": of_sums(_fraction("Macro-averaged F1", "F1"), classification.class_sums, classification.macro_f1_of),
    "micro_f1": of_sums(_fraction("Micro-averaged F1 of labels", "F1"), multilabel.micro_sums, f1_of),
    "macro_label_f1": of_sums(
        _fraction("Macro-averaged F1 of labels", "F1"), multilabel.label_sums, classification.macro_f1_of),
    "subset_accuracy": of_sums(accuracy_metric("Texts with all labels right"), multilabel.subset_sums, mean_of),
    **_precision_recall_f1("sense", ("Precision of senses", "Recall of senses", "F1 of senses"), multilabel.sense_sums),
    "pearson": of_sums(_correlation("Pearson correlation"), correlation.moments, correlation.pearson_of),
    "spearman": TaskMetric(_correlation("Spearman correlation"), correlation.spearman),
    "token_accuracy": of_sums(accuracy_metric("Token accuracy"), entities.token_sums, mean_of),
    **_precision_recall_f1("entity", ("Entity precision", "Entity recall", "Entity F1"), entities.entity_sums),
    **_precision_recall_f1("conll", ("conlleval precision", "conlleval recall", "conlleval F1"), entities.conll_sums),
    "exact_match": of_sums(accuracy_metric("Exact match"), _weighted(answers.exact_scores), mean_of),
    "answer_f1": of_sums(_fraction("Answer F1", "F1"), _weighted(answers.f1_scores), mean_of),
    "bleu": of_sums(Metric("BLEU", "BLEU", True, ".2f", maximum=100.0), translation.bleu_sums, translation.bleu_of),
    "chrf": of_sums(Metric("chrF", "chrF", True, ".2f", maximum=100.0), translation.chrf_sums, translation.chrf_of),
}
