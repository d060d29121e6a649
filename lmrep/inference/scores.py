"""Scores many texts under an objective's `Scoring`, in batches of similar length."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.params import Array
from lmrep.inference.encode import batch_size, one_behind
from lmrep.objectives.scoring import Scoring, Views

VIEW_TOKENS = 2**22  # the approximate number of tokens of the views that are made at once
NONE = -1  # padding of `Views.tokens` and `Views.predicted` until a batch is made


class Text(NamedTuple):
    """A tokenized text with the special tokens around it."""

    ids: np.ndarray  # int32[t]
    words: np.ndarray  # int32[t], the index of each token's word; negative for the special tokens
    scored: int | None = None  # how many of the last terms are added up, of a scoring by token; None for all terms


class Scores(NamedTuple):
    """The scores of n texts."""

    sums: np.ndarray  # float64[n], sums of log probabilities in nats
    counts: np.ndarray  # int[n], the number of terms of each sum


def score_texts(
    compute: Callable[[dict[str, np.ndarray]], Array], texts: Sequence[Text], scoring: Scoring, *, pad: int,
    tokens: int, multiple: int = 1, max_padding: int = 0, report: Callable[[int, int], None] = lambda done, total: None,
    each: Callable[[Views, np.ndarray], None] = lambda views, values: None,
) -> Scores:
    """Scores texts, from the shortest to the longest, so that batches need little padding.

    Args:
      compute: a compiled `Scoring.log_probabilities` with its parameters.
      pad: the id of padding.
      tokens: the approximate number of tokens of a batch, padding included.
      multiple: the batch size is a multiple of this.
      max_padding: the number of tokens of padding that cost about as much as compiling another shape.
      report: called with (tokens of the views scored so far, tokens of all views).
      each: called with views and their terms, float64[k, m], 0 where `Views.predicted` is NONE. The views of a text
        come in their order.
    """
    sums, counts = np.zeros(len(texts)), np.zeros(len(texts), int)

    def add(views: Views, scores: Array) -> None:
        used = views.predicted != NONE
        values = np.where(used, np.asarray(scores, np.float64)[: len(used)], 0)
        each(views, values)
        np.add.at(sums, views.text, values.sum(1))
        np.add.at(counts, views.text, used.sum(1))

    # Texts of one length have the same number of views, where they are scored as a whole.
    total = sum(len(members) * _make_views(texts, members[:1], scoring).tokens.size
                for members in _by_length(texts).values())
    done = 0
    for views, scores in one_behind((views, compute(_batch(views, size, pad))) for views, size in _batches(
            _views(texts, scoring), tokens, multiple, max_padding)):
        add(views, scores)
        done += int((views.tokens != NONE).sum())
        if done < total:
            report(done, total)
    return Scores(sums, counts)


def _by_length(texts: Sequence[Text]) -> dict[int, list[int]]:
    """Groups texts by length: {length: indices of the texts}, the shortest first."""
    numbers = defaultdict(list)
    for i, text in enumerate(texts):
        numbers[len(text.ids)].append(i)
    return dict(sorted(numbers.items()))


def _make_views(texts: Sequence[Text], members: Sequence[int], scoring: Scoring) -> Views:
    """Makes the views of texts of one length."""
    chosen = [texts[i] for i in members]
    views = scoring.views(np.stack([text.ids for text in chosen]), np.stack([text.words for text in chosen]))
    if any(text.scored is not None for text in chosen):
        views = _last_terms(views, chosen)
    return views._replace(text=np.asarray(members)[views.text])


def _last_terms(views: Views, texts: Sequence[Text]) -> Views:
    """Keeps the last `Text.scored` terms of each text, and the views that have one of them."""
    m = views.predicted.shape[1]
    counts = m * np.bincount(views.text, minlength=len(texts))
    scored = np.array([count if text.scored is None else text.scored
                       for count, text in zip(counts, texts, strict=True)])
    # The views of a text come one after the other, and its terms in order.
    term = np.arange(views.predicted.size).reshape(-1, m) - (np.cumsum(counts) - counts)[views.text][:, None]
    kept = term >= (counts - scored)[views.text][:, None]
    return _take(views._replace(predicted=np.where(kept, views.predicted, np.int32(NONE))), kept.any(1))


def _views(texts: Sequence[Text], scoring: Scoring) -> Iterator[Views]:
    """Yields the views of all texts, by length."""
    for length, members in _by_length(texts).items():
        size = max(1, VIEW_TOKENS // length**2)
        for start in range(0, len(members), size):
            yield _make_views(texts, members[start : start + size], scoring)


def _batches(groups: Iterator[Views], tokens: int, multiple: int, max_padding: int) -> Iterator[tuple[Views, int]]:
    """Yields (views, batch size) of batches of similar lengths. The last batch may have fewer views than its size.

    Views wait for views of the next length, to which they are padded, until that would make more than `max_padding`
    tokens of padding.
    """
    waiting = None
    for group in groups:
        if waiting is not None:
            steps = max(1, group.tokens.shape[1] - waiting.tokens.shape[1])
            if (waiting.tokens == NONE).sum() + steps * len(waiting.text) > max_padding:
                size = batch_size(waiting.tokens.shape[1], tokens, multiple)
                full = len(waiting.text) // size * size
                for start in range(0, full, size):
                    yield _take(waiting, slice(start, start + size)), size
                waiting = _take(waiting, slice(full, None))
            group = _join(waiting, group)
        waiting = group
    if waiting is not None:
        size = batch_size(waiting.tokens.shape[1], tokens, multiple)
        for start in range(0, len(waiting.text), size):
            yield _take(waiting, slice(start, start + size)), size


def _take(views: Views, which: slice | np.ndarray) -> Views:
    return Views(*(array[which] for array in views))


def _join(shorter: Views, longer: Views) -> Views:
    """Joins two groups of views, padded to the length of the longer ones."""
    def pad(x: np.ndarray, to: int) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, to - x.shape[1])), constant_values=NONE)

    m = max(shorter.predicted.shape[1], longer.predicted.shape[1])
    parts = [Views(views.text, pad(views.tokens, longer.tokens.shape[1]), pad(views.predicted, m),
                   pad(views.targets, m)) for views in (shorter, longer)]
    return Views(*map(np.concatenate, zip(*parts, strict=True)))


def _batch(views: Views, size: int, padding: int) -> dict[str, np.ndarray]:
    """Makes a batch of views for `Scoring.log_probabilities`; further examples are padding."""
    tokens, predicted, targets = (
        np.pad(x, ((0, size - len(x)), (0, 0)), constant_values=NONE) for x in views[1:])
    return {"tokens": np.where(tokens == NONE, np.int32(padding), tokens),
            "segment_ids": (tokens != NONE).astype(np.int32),
            "predicted": predicted.clip(0), "targets": targets.clip(0)}
