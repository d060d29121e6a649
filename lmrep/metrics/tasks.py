"""The metrics of tasks that do not add up over batches, by name: each is computed from all examples at once."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from lmrep.metrics import Metric, accuracy_metric, multilabel, senses
from lmrep.metrics import answers as qa
from lmrep.metrics import classification as labels
from lmrep.metrics import correlation as numbers
from lmrep.metrics import entities as tags
from lmrep.metrics import translation as texts
from lmrep.metrics.sums import f1_of, mean_of, precision_of, recall_of


class TaskMetric(NamedTuple):
    """A metric of gold and predicted values.

    Attributes:
      metric: its title, unit, direction and format.
      function: (gold, predicted, **options) -> float; its docstring describes what both are.
      sums: (gold, predicted, **options) -> float64 [n, k], statistics of each example of whose sums the metric is a
        function; None where there are none.
      figure: [..., k] sums -> [...] values of the metric.
    """

    metric: Metric
    function: Callable[..., float]
    sums: Callable[..., np.ndarray] | None = None
    figure: Callable[[np.ndarray], np.ndarray] | None = None


def _f1(title: str) -> Metric:
    return Metric(title, "F1", True, ".2%")


def _correlation(title: str) -> Metric:
    return Metric(title, "correlation", True, ".4f")


TASK_METRICS: Mapping[str, TaskMetric] = {
    "accuracy": TaskMetric(accuracy_metric("Accuracy"), labels.accuracy, labels.correct_sums, mean_of),
    "matthews": TaskMetric(
        _correlation("Matthews correlation"), labels.matthews, labels.class_sums, labels.matthews_of),
    "f1": TaskMetric(_f1("F1 of the positive class"), labels.f1, labels.f1_sums, f1_of),
    "macro_f1": TaskMetric(_f1("Macro-averaged F1"), labels.macro_f1, labels.class_sums, labels.macro_f1_of),
    "micro_f1": TaskMetric(_f1("Micro-averaged F1 of labels"), multilabel.micro_f1, multilabel.micro_sums, f1_of),
    "macro_label_f1": TaskMetric(
        _f1("Macro-averaged F1 of labels"), multilabel.macro_f1, multilabel.label_sums, labels.macro_f1_of),
    "subset_accuracy": TaskMetric(
        accuracy_metric("Texts with all labels right"), multilabel.subset_accuracy, multilabel.subset_sums, mean_of),
    "sense_f1": TaskMetric(_f1("F1 of senses"), senses.f1, senses.sense_sums, f1_of),
    "sense_precision": TaskMetric(
        Metric("Precision of senses", "precision", True, ".2%"), senses.precision, senses.sense_sums, precision_of),
    "sense_recall": TaskMetric(
        Metric("Recall of senses", "recall", True, ".2%"), senses.recall, senses.sense_sums, recall_of),
    "pearson": TaskMetric(_correlation("Pearson correlation"), numbers.pearson, numbers.moments, numbers.pearson_of),
    "spearman": TaskMetric(_correlation("Spearman correlation"), numbers.spearman),
    "token_accuracy": TaskMetric(accuracy_metric("Token accuracy"), tags.token_accuracy, tags.token_sums, mean_of),
    "entity_precision": TaskMetric(
        Metric("Entity precision", "precision", True, ".2%"), tags.entity_precision, tags.entity_sums, precision_of),
    "entity_recall": TaskMetric(
        Metric("Entity recall", "recall", True, ".2%"), tags.entity_recall, tags.entity_sums, recall_of),
    "entity_f1": TaskMetric(_f1("Entity F1"), tags.entity_f1, tags.entity_sums, f1_of),
    "conll_precision": TaskMetric(
        Metric("conlleval precision", "precision", True, ".2%"), tags.conll_precision, tags.conll_sums, precision_of),
    "conll_recall": TaskMetric(
        Metric("conlleval recall", "recall", True, ".2%"), tags.conll_recall, tags.conll_sums, recall_of),
    "conll_f1": TaskMetric(_f1("conlleval F1"), tags.conll_f1, tags.conll_sums, f1_of),
    "exact_match": TaskMetric(accuracy_metric("Exact match"), qa.exact_match, qa.exact_sums, mean_of),
    "answer_f1": TaskMetric(_f1("Answer F1"), qa.answer_f1, qa.f1_sums, mean_of),
    "bleu": TaskMetric(Metric("BLEU", "BLEU", True, ".2f", maximum=100.0), texts.bleu, texts.bleu_sums, texts.bleu_of),
    "chrf": TaskMetric(Metric("chrF", "chrF", True, ".2f", maximum=100.0), texts.chrf, texts.chrf_sums, texts.chrf_of),
}
