"""A bag of words: what a linear model of word counts reaches on the examples of a task, without a network.

TF-IDF of words and pairs of neighbouring words, of each text of a pair, and scikit-learn's logistic regression or, for
numbers, ridge regression; for several labels, a regression for each. The predictions are scored as those of a network.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.data.records import Record, spread
from lmrep.data.records.encoding import Units
from lmrep.tasks import TASKS
from lmrep.tasks.base import Result

TASK_NAMES = ("classification", "multilabel", "regression")
MOST_TEXTS = 50_000  # of training, at equal distances
MOST_CHARACTERS = 20_000_000  # of these; they take about ten seconds
CERTAIN = 20.0  # the logit of a label that all training texts have
FEATURES = 200_000  # the most frequent words and pairs of words of each text


def evaluate(name: str, c: Any, training: Sequence[Record], held_out: Sequence[Record]) -> tuple[Result, int]:
    """Fits a linear model to training records and scores its predictions for held-out ones.

    Args:
      name: the task, one of `TASK_NAMES`.
      c: its resolved config.

    Returns:
      (the task's result for `held_out`, the number of training records that were used).

    Raises:
      ValueError: the texts have no words, or the training records a single class.
    """
    from sklearn.exceptions import ConvergenceWarning

    fields = [field for field in ("text", "text2") if any(field in record.fields for record in training)]
    characters = sum(len(record.fields.get(field, "")) for field in fields for record in training)
    training = spread(training, min(MOST_TEXTS, max(1, MOST_CHARACTERS * len(training) // max(1, characters))))
    features = vectorizer(fields)
    x, x_held_out = features.fit_transform(training), features.transform(held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predict = {"classification": _classes, "multilabel": _label_sets, "regression": _numbers}[name]
        target = "labels" if name == "multilabel" else "label"
        arrays = predict(c, x, [record.fields[target] for record in training], x_held_out)
    nothing = np.zeros(0, np.int32)
    units = Units(nothing, nothing, np.zeros(len(held_out) + 1, np.int64), np.arange(len(held_out)), {})
    return TASKS[name].score(c, held_out, units, arrays), len(training)


def vectorizer(fields: Sequence[str]) -> Any:
    """Returns the scikit-learn transformer of records to the TF-IDF features of their texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    return FeatureUnion([(field, TfidfVectorizer(
        preprocessor=lambda record, field=field: record.fields.get(field, "").lower(), token_pattern=r"\w+",
        ngram_range=(1, 2), sublinear_tf=True, max_features=FEATURES)) for field in fields])


def _classes(c: Any, x: Any, labels: Sequence[str], x_held_out: Any) -> dict[str, list]:
    from sklearn.linear_model import LogisticRegression

    weights = dict(zip(c.labels, c.class_weights, strict=True)) if c.class_weights else None
    model = LogisticRegression(C=10, max_iter=200, class_weight=weights).fit(x, labels)
    probabilities = np.full((x_held_out.shape[0], len(c.labels)), np.finfo(np.float32).tiny)
    probabilities[:, [c.labels.index(label) for label in model.classes_]] = model.predict_proba(x_held_out)
    return {"log_probabilities": [*np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))]}


def _label_sets(c: Any, x: Any, labels: Sequence[Sequence[str]], x_held_out: Any) -> dict[str, list]:
    from sklearn.linear_model import LogisticRegression

    logits = np.empty((x_held_out.shape[0], len(c.labels)))
    for i, label in enumerate(c.labels):
        y = [label in present for present in labels]
        logits[:, i] = LogisticRegression(C=10, max_iter=200).fit(x, y).decision_function(x_held_out) if any(y) and \
            not all(y) else (CERTAIN if any(y) else -CERTAIN)
    return {"logits": [*logits]}


def _numbers(c: Any, x: Any, labels: Sequence[str], x_held_out: Any) -> dict[str, list]:
    from sklearn.linear_model import Ridge

    return {"value": [*Ridge().fit(x, [float(label) for label in labels]).predict(x_held_out)]}
