"""Questions with windows of their contexts, as units, and the tokens of answers."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units, assemble, windows
from lmrep.data.tokenizers import Tokenizer
from lmrep.tasks.base import TextEncoder

log = logging.getLogger(__name__)


def encode(c: Any, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """A unit for each question and window of its context; `c` is a `span_extraction.Config`. The question comes first,
    except in XLNet's layout.

    The columns `start` and `end` are the positions of the first answer's first and last token in the unit; where the
    window lacks a part of it, and where there is none, that of no answer; -1 for records without the field `answers`.
    The column `null` is the position of no answer. With `end=conditioned` there are `context_first` and `context_end`,
    the range of the context in the unit.

    `details` has for each unit the number of its context (`context`), the position of its first token of the context
    (`position`) and their range in the context (`begin`, `end`); and for all contexts, one after another from
    `bounds` [c+1], the characters [m, 2] of each token (`offsets`).
    """
    names = [record.where for record in records]
    questions = encoder.ids([record.fields["question"] for record in records], names)
    cut = sum(len(ids) > c.max_question_tokens for ids in questions)
    if cut:
        log.warning("%s of %s questions have more than %d tokens and are cut", f"{cut:,}", f"{len(questions):,}",
                    c.max_question_tokens)
    contexts: dict[str, int] = {}
    numbers = [contexts.setdefault(record.fields["context"], len(contexts)) for record in records]
    first = {number: i for i, number in reversed(list(enumerate(numbers)))}
    encoded = [tokens_of(text, encoder.tokenizer, names[first[number]]) for text, number in contexts.items()]
    has_words = encoder.distinct is not None
    words = [encoder.words(text) if has_words else None for text in contexts]
    units, rows, uncovered, long = [], [], 0, 0
    context_first = encoder.layout.cls_last  # XLNet
    for i, record in enumerate(records):
        question, number = questions[i][: c.max_question_tokens], numbers[i]
        ids, offsets = encoded[number]
        found = answer_tokens(offsets, *record.fields["answers"][0]) if record.fields.get("answers") else None
        own = encoder.words(record.fields["question"])[: len(question)] if has_words else None
        uncovered += found is None and bool(record.fields.get("answers"))
        parts = _windows(encoder, len(question), len(ids), names[i])
        long += parts != [(0, len(ids))]
        for begin, end in parts:
            pair, numbered = (question, ids[begin:end]), (own, words[number][begin:end]) if has_words else None
            if context_first:
                pair, numbered = pair[::-1], numbered and numbered[::-1]
            unit = assemble(encoder.layout, *pair, numbered)
            position = unit.first if context_first else unit.second
            null = len(unit.ids) - 1 if c.context == "left" or context_first else 0
            target = (null, null) if "answers" in record.fields else (-1, -1)
            if found and begin <= found[0] and found[1] < end:
                target = found[0] - begin + position, found[1] - begin + position
            units.append(unit)
            rows.append((i, *target, null, number, position, begin, end))
    if uncovered:
        log.warning("%s of %s answers have no token, and count as unanswerable in training", f"{uncovered:,}",
                    f"{len(records):,}")
    owner, start, end, null, context, position, begin, stop = np.array(rows, np.int32).T
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in encoded])])
    columns = {"start": start, "end": end, "null": null}
    if c.end == "conditioned":
        columns |= {"context_first": position, "context_end": position + stop - begin}
    every = encoder.collect(units, owner, columns)
    return every._replace(details=every.details | {
        "context": context, "position": position, "begin": begin, "end": stop, "bounds": bounds,
        "offsets": np.concatenate([offsets for _, offsets in encoded])}), long


def tokens_of(text: str, tokenizer: Tokenizer, name: str) -> tuple[np.ndarray, np.ndarray]:
    """ids int32 [t] of a text, and the characters int32 [t, 2] of each without the white space around it."""
    try:
        encoding = tokenizer.encode(text)
    except TypeError:  # lone surrogates
        raise UserError(f"{name} is not Unicode text; convert it") from None
    offsets = []
    for start, end in encoding.offsets:
        part = text[start:end]
        start += len(part) - len(part.lstrip())
        offsets.append((start, max(start, end - len(part) + len(part.rstrip()))))
    offsets = np.array(offsets, np.int32).reshape(-1, 2)
    if not (offsets[:, 1] > offsets[:, 0]).any():
        raise UserError(f"{name}: the tokenizer finds no token in {text[:60]!r}; give a text")
    return encoding.ids, offsets


def _windows(encoder: TextEncoder, question: int, context: int, name: str) -> list[tuple[int, int]]:
    """The windows of a context of that many tokens, after a question of so many."""
    capacity = encoder.length - encoder.layout.special(True) - question
    if capacity < 1:
        raise UserError(f"{name}: config.length is {encoder.length}, and a question of {question} tokens leaves none "
                        "for the context; raise it, or lower --config.objective.max_question_tokens")
    if context <= capacity or encoder.format.long == "windows":
        return windows(context, capacity, min(encoder.format.stride, capacity))
    if encoder.format.long == "truncate":
        return [(0, capacity)]
    raise UserError(f"{name} has a context of {context:,} tokens, and config.length {encoder.length:,} leaves "
                    f"{capacity:,}; set --config.format.long=windows, or truncate")


def answer_tokens(offsets: np.ndarray, answer: str, start: int) -> tuple[int, int] | None:
    """The first and the last token of the smallest span that contains the characters from `start` on; None where no
    token has any of them. `offsets` are the characters int [t, 2] of each token."""
    low, high = np.maximum(offsets[:, 0], start), np.minimum(offsets[:, 1], start + len(answer))
    inside = np.flatnonzero(low < high)
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
