"""Metrics of generated texts, which compare them as texts, numbers, answers to questions, or tags of words."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmrep.core.errors import UserError
from lmrep.core.text_files import parse_number
from lmrep.data.records import Record
from lmrep.metrics.tasks import TASK_METRICS, TaskMetric
from lmrep.tasks import schemes


class Gold(NamedTuple):
    """The gold values of an example."""

    text: str  # the target
    answers: tuple[str, ...]  # all texts that are right; () if a question has no answer
    tags: tuple[str, ...]  # the tag of each word; the words of the target if the example has no tags


def gold_of(record: Record, text: str, scheme: str) -> Gold:
    """Returns the gold values of a record whose target is `text`, with its tags converted to the scheme, if not ""."""
    answers, tags = record.fields.get("answers"), record.fields.get("tags", text.split())
    return Gold(text, (text,) if answers is None else tuple(answer for answer, _ in answers),
                tuple(schemes.convert(scheme, tags) if scheme else tags))


def tags_of(record: Record) -> Sequence[str]:
    """Returns the tags of a record in its file; the words of its target if it has no tags."""
    return record.fields.get("tags", record.fields.get("target", "").split())


def number(text: str) -> float:
    """Converts a text to a number; NaN if it is no finite number."""
    value = parse_number(text)
    return value if math.isfinite(value) else math.nan


# The values that a metric compares for an example: (gold, generated text, scheme of tags) -> (gold, predicted).


def _texts(gold: Gold, text: str, scheme: str) -> tuple[str, str]:
    return gold.text, text


def _numbers(gold: Gold, text: str, scheme: str) -> tuple[float, float]:
    """Returns both as numbers; a text that is no number counts as 0."""
    a, b = (0.0 if math.isnan(number(value)) else number(value) for value in (gold.text, text))
    return a, b


def _answers(gold: Gold, text: str, scheme: str) -> tuple[tuple[str, ...], str]:
    return gold.answers, text


def _tags(gold: Gold, text: str, scheme: str) -> tuple[tuple[str, ...], list[str]]:
    """Returns a tag for each word; O if the text has too few tags, or a tag is not in the scheme."""
    tags = text.split()[: len(gold.tags)]
    tags = [tag if not scheme or schemes.belongs(scheme, tag) else schemes.OUTSIDE for tag in tags]
    return gold.tags, tags + [schemes.OUTSIDE] * (len(gold.tags) - len(tags))


def _adapted(metric: TaskMetric, compared: Callable[[Gold, str, str], tuple[Any, Any]]) -> TaskMetric:
    """Adapts a metric to `Gold` values and generated texts."""
    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        def adapted(gold: Sequence[Gold], texts: Sequence[str], **options: Any) -> Any:
            pairs = [compared(a, b, options.get("scheme", "")) for a, b in zip(gold, texts, strict=True)]
            return function([a for a, _ in pairs], [b for _, b in pairs], **options)

        return adapted

    return metric._replace(function=of(metric.function), sums=of(metric.sums) if metric.sums else None)


KINDS = {
    _texts: ("bleu", "chrf", "accuracy", "f1", "macro_f1", "matthews"),
    _numbers: ("pearson", "spearman"),
    _answers: ("exact_match", "answer_f1"),
    _tags: ("token_accuracy", "entity_f1", "conll_f1"),
}
# Metrics that compare (Gold of each example, generated texts); "accuracy" counts whole texts.
TEXT_METRICS = {name: _adapted(TASK_METRICS[name], kind) for kind, names in KINDS.items() for name in names}
SIMILARITY = ("bleu", "chrf", *KINDS[_answers])  # metrics by which a text that is nearly the target scores well


def check(record: Record, metrics: Sequence[str]) -> None:
    """Raises UserError for a target that is no number, if one of the metrics compares numbers."""
    text = record.fields.get("target", "")
    numeric = [name for name in KINDS[_numbers] if name in metrics]
    if numeric and "target" in record.fields and math.isnan(number(text)):
        raise UserError(f"{record.where} has the target {text[:60]!r}, which is no number, and {numeric[0]} "
                        f"compares numbers; correct it, or leave {' and '.join(numeric)} out of "
                        "config.objective.metrics")


def options(gold: Sequence[Gold], positive: str, scheme: str) -> dict[str, dict[str, Any]]:
    """Returns {metric: its keyword arguments}. Gold answers decide the version of SQuAD's script: 1.1 if every question
    has an answer."""
    version = {"version": "1.1" if all(right.answers for right in gold) else "2.0"}
    return {"f1": {"positive": positive}, "entity_f1": {"scheme": scheme}, "exact_match": version,
            "answer_f1": version}
