"""Text and figures as the official scripts of shared tasks print them."""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics import entities
from lmrep.metrics.answers import exact_scores, f1_scores

Tags = Sequence[Sequence[str]]


def squad1(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> tuple[str, dict[str, float]]:
    """The figures of SQuAD 1.1's script, in percent, and the line that it prints.

    A question without a prediction counts as wrong. Raises UserError where a question has no gold answers.
    """
    if unanswerable := [key for key, answers in gold.items() if not answers]:
        raise UserError(f"{len(unanswerable):,} questions have no answer, such as {unanswerable[0]!r}; SQuAD 1.1 has "
                        "none of these: use --metric=squad2")
    ids = [key for key in gold if key in predicted]
    totals = {}
    for name, scores in (("exact_match", exact_scores), ("f1", f1_scores)):
        each = scores([gold[key] for key in ids], [predicted[key] for key in ids], version="1.1")
        totals[name] = 100.0 * sum(each.tolist()) / len(gold)
    return json.dumps(totals), totals


def conlleval(gold: Tags, predicted: Tags) -> tuple[str, dict[str, Any]]:
    """The figures and the text of `conlleval` (version of 2004), for each type of entity and for all."""
    by_type: dict[str, np.ndarray] = {}
    for a, b in zip(gold, predicted, strict=True):
        for type_, counts in entities.conll_counts(a, b).items():
            by_type[type_] = by_type.get(type_, 0) + counts
    correct, found_gold, found = map(int, sum(by_type.values(), np.zeros(3)))
    right, tokens = entities.token_sums(gold, predicted).sum(0)
    total = _percentages(correct, found_gold, found)
    lines = [f"processed {int(tokens)} tokens with {found_gold} phrases; found: {found} phrases; correct: {correct}.",
             f"accuracy: {100 * right / tokens:6.2f}%; {_line(total)}"]
    figures = {"accuracy": 100 * right / tokens, **total, "tokens": int(tokens), "gold": found_gold, "found": found,
               "correct": correct, "types": {}}
    for type_ in sorted(by_type):
        correct, found_gold, found = map(int, by_type[type_])
        values = _percentages(correct, found_gold, found)
        lines.append(f"{type_:>17}: {_line(values)}  {found}")
        figures["types"][type_] = values | {"gold": found_gold, "found": found, "correct": correct}
    return "\n".join(lines), figures


def _percentages(correct: int, gold: int, found: int) -> dict[str, float]:
    precision = 100 * correct / found if found else 0.0
    recall = 100 * correct / gold if gold else 0.0
    return {"precision": precision, "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if correct else 0.0}


def _line(values: Mapping[str, float]) -> str:
    return f"precision: {values['precision']:6.2f}%; recall: {values['recall']:6.2f}%; FB1: {values['f1']:6.2f}"


def seqeval(gold: Tags, predicted: Tags, strict: bool, scheme: str) -> tuple[str, dict[str, Any]]:
    """seqeval's `classification_report`, as text and as figures between 0 and 1. Raises UserError if in strict mode a
    tag is not of the scheme; or there is no entity at all."""
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    if not entities.entity_sums(gold, predicted, scheme, strict).any():
        raise UserError("there is no entity, neither gold nor predicted; nothing can be reported")
    options: dict[str, Any] = {"zero_division": 0}
    if strict:
        options |= {"mode": "strict", "scheme": getattr(schemes, entities.scheme_name(scheme))}
    gold, predicted = [list(tags) for tags in gold], [list(tags) for tags in predicted]
    with warnings.catch_warnings(action="ignore"):  # one for each tag without prefix
        figures = classification_report(gold, predicted, output_dict=True, **options)
        text = classification_report(gold, predicted, **options)
    return text.rstrip("\n"), {
        name: {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
        for name, values in figures.items()}
