"""Answers in texts: questions with windows of their contexts as units, and from the scores of tokens to answers."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

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


# From scores to answers


class Spans(NamedTuple):
    """Spans of tokens, best first.

    Attributes:
      scores: float64 [k], start + end logit.
      first, last: int64 [k], tokens of the context, both inclusive.
    """

    scores: np.ndarray
    first: np.ndarray
    last: np.ndarray


def max_context(windows: np.ndarray) -> np.ndarray:
    """The window in which each token of a context has most context: the larger of the smaller of its left and right
    contexts, plus a hundredth of the window's length, as in BERT's code; of equal ones, the first.

    Args:
      windows: int [w, 2], [first token, end) of each window.

    Returns:
      int64 [t], an index of `windows` for each token up to the largest end.
    """
    begin, end = windows[:, :1], windows[:, 1:]
    tokens = np.arange(windows.max(initial=0))
    near = np.minimum(tokens - begin, end - 1 - tokens)
    return np.where(near >= 0, near + 0.01 * (end - begin), -np.inf).argmax(0)


def best_spans(start: np.ndarray, end: np.ndarray, max_tokens: int, n: int) -> Spans:
    """The n best spans of at most `max_tokens` tokens of one window: exact, not only among the n best starts and ends.

    Args:
      start, end: float64 [t], the scores of starting and ending at each token; -inf where no span may.
      max_tokens: of a span.
      n: how many; fewer are returned where there are fewer.
    """
    padded = np.pad(end, (0, max_tokens - 1), constant_values=-np.inf)
    ends = np.lib.stride_tricks.sliding_window_view(padded, max_tokens)
    # The n best spans begin at the n starts whose best span is best.
    first = np.argsort(-(start + ends.max(-1)), kind="stable")[:n]
    sums = (start[first, None] + ends[first]).ravel()
    chosen = np.argsort(-sums, kind="stable")[:n]
    chosen = chosen[np.isfinite(sums[chosen])]
    first, extra = first[chosen // max_tokens], chosen % max_tokens
    return Spans(sums[chosen], first, first + extra)


def search(
    start: list[np.ndarray], end: list[np.ndarray], windows: np.ndarray, usable: np.ndarray, max_tokens: int, n: int
) -> Spans:
    """The n best spans of a question over its windows, each in the window where its first token has most context.

    Args:
      start, end: for each window the logits [t] of its tokens of the context.
      windows: int [w, 2], as of `max_context`.
      usable: bool [c], which tokens of the context may begin or end an answer.
      max_tokens, n: as of `best_spans`.
    """
    owner = max_context(windows) if len(windows) > 1 else None
    found = []
    for i, (begin, stop) in enumerate(windows):
        allowed = usable[begin:stop]
        starts = allowed if owner is None else allowed & (owner[begin:stop] == i)
        scores, first, last = best_spans(
            np.where(starts, start[i], -np.inf).astype(np.float64),
            np.where(allowed, end[i], -np.inf).astype(np.float64), max_tokens, n)
        found.append(Spans(scores, first + begin, last + begin))
    merged = Spans(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
    order = np.argsort(-merged.scores, kind="stable")[:n]
    return Spans(*(array[order] for array in merged))


def of_starts(
    first: np.ndarray, start: np.ndarray, end: np.ndarray, windows: np.ndarray, usable: np.ndarray, n: int
) -> Spans:
    """The n best spans of a question over its windows, of those that begin at the k best starts of each. They begin in
    the window where their first token has most context, where there are such.

    Args:
      first: int [w, k], tokens of the context.
      start: float [w, k], the scores of starting there; below -1e29 where that is no token of the context.
      end: float [w, k, m], the scores of ending at that token, the next, ...; also below where there is none.
      windows, usable: as of `search`.
      n: how many; fewer are returned where there are fewer.
    """
    # Starts outside the context, whose scores are too low for `there`, may have any number.
    known, last = (np.clip(at, 0, len(usable) - 1) for at in (first, first[..., None] + np.arange(end.shape[-1])))
    scores = start[..., None].astype(np.float64) + end
    there = scores > -1e29
    words = there & usable[known][..., None] & usable[last]
    owner = max_context(windows)[np.clip(first, 0, windows.max() - 1)] == np.arange(len(windows))[:, None]
    possible = next(mask for mask in (words & owner[..., None], words, there) if mask.any())
    order = np.argsort(-np.where(possible, scores, -np.inf), axis=None, kind="stable")[: min(n, int(possible.sum()))]
    begins = np.broadcast_to(first[..., None], last.shape)
    return Spans(scores.ravel()[order], begins.ravel()[order], last.ravel()[order])


def tune_threshold(null_odds: np.ndarray, answer_scores: np.ndarray, empty_scores: np.ndarray) -> float:
    """The threshold of `null_odds`, above which "" is predicted, that gives the largest mean score; of equal ones, the
    one nearest to 0.

    Args:
      null_odds: float [n], of every question: the score of no answer minus the score of the best answer.
      answer_scores, empty_scores: float [n], what the best answer, and what "", scores.

    Returns:
      0, or a value halfway between the odds of two questions, or 1 beyond all of them.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = null_odds[order]
    # The first k questions are answered where odds[k - 1] <= threshold < odds[k].
    totals = np.concatenate([[0.0], np.cumsum((answer_scores - empty_scores)[order])])
    low, high = np.concatenate([[-np.inf], odds]), np.concatenate([odds, [np.inf]])
    middle = (np.maximum(low, odds[0] - 2) + np.minimum(high, odds[-1] + 2)) / 2
    thresholds = np.where((low <= 0) & (high > 0), 0.0, np.where(middle < high, middle, low))
    possible = low < high
    best = possible & (totals > totals[possible].max() - 1e-9)
    return float(min(thresholds[best], key=abs))
