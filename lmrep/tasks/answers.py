"""Answers in texts: encodes questions with windows of their contexts, and finds answers by the scores of tokens."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units, assemble, windows
from lmrep.data.tokenizers import Tokenizer
from lmrep.data.tokenizers.known_words import refuse_missing_tokens
from lmrep.tasks.base import TextEncoder

log = logging.getLogger(__name__)


def encode(c: Any, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each question and window of its context; `c` is a `span_extraction.Config`. The question comes
    first, except in XLNet's layout.

    The columns `start` and `end` are the positions of the first answer's first and last token in the unit. They are the
    position of no answer if the question has none, or the window lacks a part of it, and -1 for records without the
    field `answers`. The column `null` is the position of no answer. With `end=conditioned`, `context_first` and
    `context_end` are the range of the context in the unit.

    `details` has for each unit the number of its context (`context`), the position of its first token of the context
    (`position`) and the range of its tokens in the context (`begin`, `end`). `offsets` [m, 2] has the characters of
    each token of all contexts, one context after another; `bounds` [c+1] says where each context begins.
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
        answer = answer_tokens(offsets, *record.fields["answers"][0]) if record.fields.get("answers") else None
        question_words = encoder.words(record.fields["question"])[: len(question)] if has_words else None
        uncovered += answer is None and bool(record.fields.get("answers"))
        parts = _windows(encoder, len(question), len(ids), names[i])
        long += parts != [(0, len(ids))]
        for begin, end in parts:
            pair = question, ids[begin:end]
            pair_words = (question_words, words[number][begin:end]) if has_words else None
            if context_first:
                pair, pair_words = pair[::-1], pair_words and pair_words[::-1]
            unit = assemble(encoder.layout, *pair, pair_words)
            position = unit.first if context_first else unit.second
            null = len(unit.ids) - 1 if c.context == "left" or context_first else 0
            target = (null, null) if "answers" in record.fields else (-1, -1)
            if answer and begin <= answer[0] and answer[1] < end:
                target = answer[0] - begin + position, answer[1] - begin + position
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
    collected = encoder.collect(units, owner, columns)
    return collected._replace(details=collected.details | {
        "context": context, "position": position, "begin": begin, "end": stop, "bounds": bounds,
        "offsets": np.concatenate([offsets for _, offsets in encoded])}), long


def tokens_of(text: str, tokenizer: Tokenizer, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids int32 [t] of a text, and the characters int32 [t, 2] of each token without white space around
    it. Raises UserError, which begins with `name`, if the text is not Unicode or has no token, or is read backward."""
    if tokenizer.backward:
        raise UserError(f"{name}: tokenizer.direction is 'backward', and spans are read in the order of the text; "
                        "start from a checkpoint that reads forward")
    refuse_missing_tokens(tokenizer, f"{name}: a span")
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
    """Returns the windows [begin, end) of a context of `context` tokens, after a question of `question` tokens."""
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
    """Finds (first token, last token) of the smallest span that contains `answer`, whose first character is `start`;
    None if no token has any of its characters. `offsets` int [t, 2] are the characters of each token."""
    low, high = np.maximum(offsets[:, 0], start), np.minimum(offsets[:, 1], start + len(answer))
    inside = np.flatnonzero(low < high)
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


# Finding answers by scores


class Spans(NamedTuple):
    """Spans of tokens, best first.

    Attributes:
      scores: float64 [k], the sum of the logits of start and end.
      first, last: int64 [k], tokens of the context, both inclusive.
    """

    scores: np.ndarray
    first: np.ndarray
    last: np.ndarray


def max_context(windows: np.ndarray) -> np.ndarray:
    """Finds the window in which each token of a context has most context, as BERT's code measures it: the smaller of
    its left and right contexts, plus a hundredth of the window's length. Of equal windows the first counts.

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
    """Finds the n best spans of at most `max_tokens` tokens of a window: exactly, not only among the n best starts and
    ends. Returns fewer if there are fewer.

    Args:
      start, end: float64 [t], the scores of starting and ending at each token; -inf where no span may.
      max_tokens: the most tokens of a span.
      n: the number of spans.
    """
    padded = np.pad(end, (0, max_tokens - 1), constant_values=-np.inf)
    ends = np.lib.stride_tricks.sliding_window_view(padded, max_tokens)
    # The n best spans begin at the n starts whose best span is best.
    first = np.argsort(-(start + ends.max(-1)), kind="stable")[:n]
    sums = (start[first, None] + ends[first]).ravel()
    best = np.argsort(-sums, kind="stable")[:n]
    best = best[np.isfinite(sums[best])]
    first, extra = first[best // max_tokens], best % max_tokens
    return Spans(sums[best], first, first + extra)


def search(
    start: list[np.ndarray], end: list[np.ndarray], windows: np.ndarray, usable: np.ndarray, max_tokens: int, n: int
) -> Spans:
    """Finds the n best spans of a question over its windows. A span counts in the window where its first token has most
    context.

    Args:
      start, end: for each window the logits [t] of its tokens of the context.
      windows: int [w, 2], [first token, end) of each window.
      usable: bool [c], which tokens of the context may begin or end an answer.
      max_tokens, n: as in `best_spans`.
    """
    owner = max_context(windows) if len(windows) > 1 else None
    spans = []
    for i, (begin, stop) in enumerate(windows):
        allowed = usable[begin:stop]
        starts = allowed if owner is None else allowed & (owner[begin:stop] == i)
        scores, first, last = best_spans(
            np.where(starts, start[i], -np.inf).astype(np.float64),
            np.where(allowed, end[i], -np.inf).astype(np.float64), max_tokens, n)
        spans.append(Spans(scores, first + begin, last + begin))
    merged = Spans(*(np.concatenate(arrays) for arrays in zip(*spans, strict=True)))
    order = np.argsort(-merged.scores, kind="stable")[:n]
    return Spans(*(array[order] for array in merged))


def of_starts(
    first: np.ndarray, start: np.ndarray, end: np.ndarray, windows: np.ndarray, usable: np.ndarray, n: int
) -> Spans:
    """Finds the n best spans of a question among those that begin at the k best starts of each window. Spans whose
    first token has most context in their window are preferred to all others. Returns fewer if there are fewer.

    Args:
      first: int [w, k], tokens of the context.
      start: float [w, k], the scores of starting at these tokens; below -1e29 outside the context.
      end: float [w, k, m], the scores of ending at the first token, the next one, ...; below -1e29 outside the context.
      windows, usable: as in `search`.
      n: the number of spans.
    """
    # Starts outside the context, whose scores are too low for `inside`, may have any number.
    known, last = (np.clip(at, 0, len(usable) - 1) for at in (first, first[..., None] + np.arange(end.shape[-1])))
    scores = start[..., None].astype(np.float64) + end
    inside = scores > -1e29
    words = inside & usable[known][..., None] & usable[last]
    owner = max_context(windows)[np.clip(first, 0, windows.max() - 1)] == np.arange(len(windows))[:, None]
    possible = next(mask for mask in (words & owner[..., None], words, inside) if mask.any())
    order = np.argsort(-np.where(possible, scores, -np.inf), axis=None, kind="stable")[: min(n, int(possible.sum()))]
    begins = np.broadcast_to(first[..., None], last.shape)
    return Spans(scores.ravel()[order], begins.ravel()[order], last.ravel()[order])


def tune_threshold(null_odds: np.ndarray, answer_scores: np.ndarray, empty_scores: np.ndarray) -> float:
    """Finds the threshold of `null_odds`, above which "" is predicted, with the largest mean score; of equal ones, the
    one nearest to 0.

    Args:
      null_odds: float [n], the score of no answer minus the score of the best answer to each question.
      answer_scores, empty_scores: float [n], the scores of predicting the best answer, and of predicting "".

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
