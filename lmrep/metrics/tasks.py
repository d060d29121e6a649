"""The metrics of tasks that do not add up over batches, by name: each is computed from all examples at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lmrep.metrics import Metric, accuracy_metric, inputs
from lmrep.metrics import answers as qa
from lmrep.metrics import classification as labels
from lmrep.metrics import correlation as numbers
from lmrep.metrics import entities as tags
from lmrep.metrics import multilabel as sets
from lmrep.metrics import translation as texts
from lmrep.metrics.sums import f1_of, mean_of, precision_of, recall_of

Statistics = Callable[..., np.ndarray]  # (gold, predicted, **options) -> float64 [n, k], of each example
Figure = Callable[[np.ndarray], np.ndarray]  # [..., k] sums -> [...]


class TaskMetric(NamedTuple):
    """A metric of gold and predicted values."""

    metric: Metric  # its title, unit, direction and format
    function: Callable[..., float]  # (gold, predicted, **options) -> its value
    sums: Statistics | None = None  # statistics of whose sums over examples the metric is a function, if it is
    figure: Figure | None = None  # that function


def of_sums(metric: Metric, statistics: Statistics, figure: Figure) -> TaskMetric:
    """A metric that is a function of sums over examples; `statistics` describes gold values, predictions and options.
    It raises UserError where there are no examples, or other numbers of gold and predicted values."""
    def function(gold: Sequence, predicted: Sequence, **options: Any) -> float:
        inputs.check_lengths(gold, predicted)
        return float(figure(statistics(gold, predicted, **options).sum(0)))

    return TaskMetric(metric, function, statistics, figure)


def _weighted(scores: Statistics) -> Statistics:
    """float64 [n, 2]: the score of each example, and 1."""
    return lambda gold, predicted, **options: np.stack([scores(gold, predicted, **options), np.ones(len(gold))], 1)


def _fraction(title: str, unit: str) -> Metric:
    return Metric(title, unit, True, ".2%")


def _correlation(title: str) -> Metric:
    return Metric(title, "correlation", True, ".4f")


def _precision_recall_f1(prefix: str, titles: Sequence[str], statistics: Statistics) -> dict[str, TaskMetric]:
    """PREFIX_precision, PREFIX_recall and PREFIX_f1 of numbers of correct, gold and predicted items."""
    kinds = (("precision", "precision", precision_of), ("recall", "recall", recall_of), ("f1", "F1", f1_of))
    return {f"{prefix}_{name}": of_sums(_fraction(title, unit), statistics, figure)
            for (name, unit, figure), title in zip(kinds, titles, strict=True)}


TASK_METRICS: Mapping[str, TaskMetric] = {
    "accuracy": of_sums(accuracy_metric("Accuracy"), labels.correct_sums, mean_of),
    "matthews": of_sums(_correlation("Matthews correlation"), labels.class_sums, labels.matthews_of),
    "f1": of_sums(_fraction("F1 of the positive class", "F1"), labels.f1_sums, f1_of),
    "macro_f1": of_sums(_fraction("Macro-averaged F1", "F1"), labels.class_sums, labels.macro_f1_of),
    "micro_f1": of_sums(_fraction("Micro-averaged F1 of labels", "F1"), sets.micro_sums, f1_of),
    "macro_label_f1": of_sums(
        _fraction("Macro-averaged F1 of labels", "F1"), sets.label_sums, labels.macro_f1_of),
    "subset_accuracy": of_sums(accuracy_metric("Texts with all labels right"), sets.subset_sums, mean_of),
    **_precision_recall_f1("sense", ("Precision of senses", "Recall of senses", "F1 of senses"), sets.sense_sums),
    "pearson": of_sums(_correlation("Pearson correlation"), numbers.moments, numbers.pearson_of),
    "spearman": TaskMetric(_correlation("Spearman correlation"), numbers.spearman),
    "token_accuracy": of_sums(accuracy_metric("Token accuracy"), tags.token_sums, mean_of),
    **_precision_recall_f1("entity", ("Entity precision", "Entity recall", "Entity F1"), tags.entity_sums),
    **_precision_recall_f1("conll", ("conlleval precision", "conlleval recall", "conlleval F1"), tags.conll_sums),
    "exact_match": of_sums(accuracy_metric("Exact match"), _weighted(qa.exact_scores), mean_of),
    "answer_f1": of_sums(_fraction("Answer F1", "F1"), _weighted(qa.f1_scores), mean_of),
    "bleu": of_sums(Metric("BLEU", "BLEU", True, ".2f", maximum=100.0), texts.bleu_sums, texts.bleu_of),
    "chrf": of_sums(Metric("chrF", "chrF", True, ".2f", maximum=100.0), texts.chrf_sums, texts.chrf_of),
}
