"""Perplexity of raw texts under a network that reads from left to right, in sliding windows."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.inference.encode import SHORTEST_ROW
from lmrep.objectives.base import Carry, Objective


class Perplexity(NamedTuple):
    """How well texts were foreseen, from left to right.

    Attributes:
      nats: the sum of -log probability over all tokens that were asked for.
      tokens: how many these are.
      words: of the raw texts, what white space separates.
      bytes: of the raw texts, in UTF-8.
      documents: how many texts.
    """

    nats: float
    tokens: int
    words: int
    bytes: int
    documents: int

    @property
    def figures(self) -> dict[str, float]:
        """`token_perplexity` and `word_perplexity`, which compares models of different tokenizers, and
        `bits_per_byte`."""
        return {"token_perplexity": _exp(self.nats / max(1, self.tokens)),
                "word_perplexity": _exp(self.nats / max(1, self.words)),
                "bits_per_byte": self.nats / math.log(2) / max(1, self.bytes),
                "tokens": self.tokens, "words": self.words, "bytes": self.bytes, "documents": self.documents}


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def windows(length: int, longest: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, first) of the windows that a text of `length` tokens is read in: tokens [start, end) are read, of
    which those from `first` on are asked for, each of the text but its first in one window.

    A window is `longest` tokens and begins `stride` after the one before, so that a token has at least
    `longest - stride` before it, or all that there are.

    Raises:
      UserError: at once, for a stride that leaves tokens out or asks for none.
    """
    if not 0 < stride < longest:
        raise UserError(f"stride is {stride}; expected 1 to {longest - 1}, below the {longest} tokens of a window")

    def found() -> Iterator[tuple[int, int, int]]:
        first, start = 1, 0
        while first < length:
            end = min(start + longest, length)
            yield start, end, first
            first, start = end, start + stride

    return found()


def sliding_window_nll(
    run: Callable[[dict[str, np.ndarray]], Array], texts: Iterable[np.ndarray], longest: int, stride: int, pad: int,
    tokens: int = 8192, multiple: int = 1,
) -> Iterator[tuple[float, int]]:
    """(nats, tokens asked for) of batches of windows over token sequences, which are taken as they are needed.

    A batch holds windows of like length, of any texts, so that short texts are not mostly padding.

    Args:
      run: a compiled `sum_nll` with its parameters.
      texts: int[n] each, beginning with what marks a text's start where there is such a token.
      longest, stride: as of `windows`.
      pad: id of padding.
      tokens: of a batch, about, padding included.
      multiple: of which the rows of a batch are one.
    """
    waiting = None
    for parts, room, rows in _group_windows(texts, longest, stride, tokens, multiple):
        batch = _batch(parts, room, rows, pad)
        nats = run(batch)
        if waiting:  # the batch before is read while this one is computed
            yield float(waiting[0]), waiting[1]
        waiting = nats, int(batch["weights"].sum())
    if waiting:
        yield float(waiting[0]), waiting[1]


def _group_windows(
    texts: Iterable[np.ndarray], longest: int, stride: int, tokens: int, multiple: int
) -> Iterator[tuple[list[tuple[np.ndarray, int]], int, int]]:
    """(windows, each with where it is asked from; tokens a row; rows) of batches. Rows have few lengths, each with one
    number of rows, so that little is compiled."""
    waiting: dict[int, list[tuple[np.ndarray, int]]] = {}
    for text in texts:
        for start, end, first in windows(len(text), longest, stride):
            room = min(max(SHORTEST_ROW, 1 << (end - start - 1).bit_length()), longest)
            parts = waiting.setdefault(room, [])
            parts.append((np.array(text[start:end]), first - start))  # a copy: the text, which may be long, can go
            if len(parts) == (rows := _rows(room, tokens, multiple)):
                yield waiting.pop(room), room, rows
    for room, parts in waiting.items():
        yield parts, room, _rows(room, tokens, multiple)


def _rows(room: int, tokens: int, multiple: int) -> int:
    return -(-max(1, tokens // room) // multiple) * multiple


def _batch(parts: Sequence[tuple[np.ndarray, int]], room: int, rows: int, pad: int) -> dict[str, np.ndarray]:
    """Windows one a row, and of which of their tokens the next is asked for."""
    tokens, segments = np.full((rows, room), pad, np.int32), np.zeros((rows, room), np.int32)
    asked = np.zeros((rows, room), np.float32)
    for row, (part, first) in enumerate(parts):
        tokens[row, : len(part)], segments[row, : len(part)] = part, 1
        asked[row, first - 1 : len(part) - 1] = 1
    targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    return {"tokens": tokens, "segment_ids": segments, "targets": targets, "weights": asked}


def sum_nll(params: Tree, batch: dict[str, Array], *, objective: Objective) -> Array:
    """The sum of -log probability of the `targets` that have a weight."""
    _, (metrics, _) = objective.loss(params, batch, None, Carry())
    return metrics["lm_loss"][0]
