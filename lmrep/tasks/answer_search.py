"""From scores of tokens to answers: the best spans of a question over its windows, and the no-answer threshold."""

from typing import NamedTuple

import numpy as np


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
      null_odds: float [n], of every question: the score of no answer minus that of the best answer.
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
