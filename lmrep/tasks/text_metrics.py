"""The metrics of generated texts: of texts as they are, of the numbers in them, of answers to questions, of tags."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmrep.core.errors import UserError
from lmrep.core.text_files import parse_number
from lmrep.data.records import Record
from lmrep.metrics.tasks import TASK_METRICS, TaskMetric
from lmrep.tasks import schemes


class Gold(NamedTuple):
    """What is right for an example."""

    text: str  # the target
    answers: tuple[str, ...]  # all texts that are right; none where a question has no answer
    tags: tuple[str, ...]  # of each word; the words of the target where the example has no tags


def gold_of(record: Record, text: str, scheme: str) -> Gold:
    """Of a record whose target is `text`. Tags are read in the scheme; "": they stay."""
    answers, tags = record.fields.get("answers"), record.fields.get("tags", text.split())
    return Gold(text, (text,) if answers is None else tuple(answer for answer, _ in answers),
                tuple(schemes.convert(scheme, tags) if scheme else tags))


def tags_of(record: Record) -> Sequence[str]:
    """The tags of a record as its file has them: the words of the target where it has no others."""
    return record.fields.get("tags", record.fields.get("target", "").split())


def number(text: str) -> float:
    """NaN for what is no finite number."""
    value = parse_number(text)
    return value if math.isfinite(value) else math.nan


# What a metric compares for an example: (gold, generated text, scheme of tags) -> (gold, predicted).


def _texts(gold: Gold, text: str, scheme: str) -> tuple[str, str]:
    return gold.text, text


def _numbers(gold: Gold, text: str, scheme: str) -> tuple[float, float]:
    """A text that is no number counts as 0."""
    a, b = (0.0 if math.isnan(number(value)) else number(value) for value in (gold.text, text))
    return a, b


def _answers(gold: Gold, text: str, scheme: str) -> tuple[tuple[str, ...], str]:
    return gold.answers, text


def _tags(gold: Gold, text: str, scheme: str) -> tuple[tuple[str, ...], list[str]]:
    """A tag for each word: O where the text has too few, or none of the scheme."""
    tags = text.split()[: len(gold.tags)]
    tags = [tag if not scheme or schemes.belongs(scheme, tag) else schemes.OUTSIDE for tag in tags]
    return gold.tags, tags + [schemes.OUTSIDE] * (len(gold.tags) - len(tags))


def _adapted(metric: TaskMetric, compared: Callable[[Gold, str, str], tuple[Any, Any]]) -> TaskMetric:
    """A metric as one of gold values and generated texts."""
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
# Metrics whose function takes (Gold of each example, generated texts); "accuracy" counts whole texts.
TEXT_METRICS = {name: _adapted(TASK_METRICS[name], kind) for kind, names in KINDS.items() for name in names}
SIMILARITY = ("bleu", "chrf", *KINDS[_answers])  # which a text that is nearly the target scores well by


def check(record: Record, metrics: Sequence[str]) -> None:
    """Raises UserError for a target that one of the metrics cannot measure: a text that is no number."""
    text = record.fields.get("target", "")
    numeric = [name for name in KINDS[_numbers] if name in metrics]
    if numeric and "target" in record.fields and math.isnan(number(text)):
        raise UserError(f"{record.where} has the target {text[:60]!r}, which is no number, and {numeric[0]} "
                        f"compares numbers; correct it, or leave {' and '.join(numeric)} out of "
                        "config.objective.metrics")


def options(gold: Sequence[Gold], positive: str, scheme: str) -> dict[str, dict[str, Any]]:
    """Metric -> its keyword arguments: the version of SQuAD's script is the one that the gold answers need."""
    version = {"version": "1.1" if all(right.answers for right in gold) else "2.0"}
    return {"f1": {"positive": positive}, "entity_f1": {"scheme": scheme}, "exact_match": version,
            "answer_f1": version}
