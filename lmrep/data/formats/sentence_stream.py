"""Sentences as two streams, one for each direction of a bidirectional language model (Peters et al. 2018).

Each sentence follows its mark: the forward stream reads <S> w1 ... wn, the backward stream </S> wn ... w1. (Without
these tokens, [CLS] and [SEP] or an end of text serve.) The sentences of a pass over the corpus are concatenated in a
random order, pass after pass, and every `length` consecutive tokens are an example: no token is left out, and none is
padding. The target of a position is the next token of its stream, where a mark means the end of the sentence: </S>
forward, <S> backward.

Example r of each batch continues example r of the previous batch, except where `reset` is 1: the stream is read by
`batch_size` readers, which begin in equal distances. Once each has read as far as the next one's begin, all move on
together, by about one pass.

With `order=independent`, as in the released code, each direction has its own random order, so that an example holds
different sentences for the two. With `order=same` it holds the same sentences at the same positions. Evaluation reads
the corpus in its own order, once. There a last mark ends each stream, so that the end of the last sentence is
predicted.

The order of a pass takes 12 bytes of memory for each sentence, for each direction; up to PASSES are kept.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmrep.config.record import setting
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.dataset import Batch
from lmrep.data.formats.base import BACKWARD, TEXT_FIELDS, FormatDef, Layout, StorePlan, make_layout

PASSES = 3  # the examples of a batch are from two passes or, where the readers move on, three
STREAM_FIELDS = ("tokens", "segment_ids", "following", "reset")


@dataclass(frozen=True)
class SentenceStream:
    """Settings of the format `sentence_stream`."""

    order: str = setting("independent", "whether the two directions read the sentences in random orders of their own, "
                         "or in the same one", choices=("independent", "same"))
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


class Pass(NamedTuple):
    """The order of the sentences in one pass."""

    order: np.ndarray | None  # int[n], the sentences; None for the order of the corpus
    begins: np.ndarray  # int64[n+1], the position of each sentence's mark in the pass; last = positions of the pass


@dataclass(frozen=True, eq=False)
class SentenceStreamPlan(StorePlan):
    """The examples of a split. The `lead` and `tail` of the layout are the marks.

    Examples below `examples` are the corpus in its own order, repeated `duplicates` times. The examples of training
    follow: number `examples` + k is the k-th example of the endless streams of shuffled passes."""

    config: SentenceStream  # of the format
    seed: int  # decides the orders of the sentences
    contiguous = True

    @functools.cached_property
    def positions(self) -> int:
        """The positions of a pass: tokens and marks."""
        return self.store.tokens + len(self.store.sentences) - 1

    @property
    def rows(self) -> int:
        """The examples of one pass in the order of the corpus, with the mark at its end."""
        return -(-(self.positions + 1) // self.length)

    @property
    def examples(self) -> int:
        return self.config.duplicates * self.rows

    @property
    def evaluation_examples(self) -> int:
        return self.rows

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """Returns the examples at some positions of a training run. The plan's seed decides the order, not `seed`."""
        step, reader = np.divmod(positions, batch_size)
        steps = max(1, self.positions // (self.length * batch_size))  # until the readers move on
        return self.examples + (step // steps * batch_size + reader) * steps + step % steps

    def continues(self, previous: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        inside = (numbers > self.examples) | (numbers % self.rows != 0)
        return (previous >= 0) & (numbers == previous + 1) & inside

    def gather(self, numbers: np.ndarray, length: int = 0) -> Batch:
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and numbers.min() < -1:
            raise IndexError(f"example {numbers.min()} of a plan")
        forward, backward = self._stream(numbers, backward=False), self._stream(numbers, backward=True)
        shape = forward["tokens"].shape
        return {
            **forward, "positions": np.arange(self.length, dtype=np.int32) * forward["segment_ids"],
            "token_type_ids": np.zeros(shape, np.int32),
            "example": np.where(numbers < 0, -1, numbers % self.examples).astype(np.int32), "backward": backward}

    def _stream(self, numbers: np.ndarray, backward: bool) -> Batch:
        """Returns the fields of one direction."""
        shuffled, filled = numbers >= self.examples, numbers >= 0
        first = np.where(shuffled, numbers - self.examples, numbers % self.rows) * self.length
        position = first[:, None] + np.arange(self.length + 1)  # with the one that follows
        real = filled[:, None] & (shuffled[:, None] | (position <= self.positions))
        source = np.full(position.shape, -1)  # in the store; -1 at marks
        for selected, number in self._passes_of(position, real, shuffled):
            independent = backward and number is not None and self.config.order == "independent"
            source[selected] = self._source(
                self._pass(number, independent), position[selected] % self.positions, backward)
        # the mark at the end of the corpus is the mark at the begin of a pass
        tokens = self.store.take(np.maximum(source, 0))
        lead, tail, pad, *_ = self.layout
        tokens[source < 0] = tail if backward or lead is None else lead
        tokens[~real] = pad
        stream = {
            "tokens": np.ascontiguousarray(tokens[:, :-1]), "segment_ids": real[:, :-1].astype(np.int32),
            "following": np.where(real[:, -1], tokens[:, -1], -1).astype(np.int32),
            "reset": np.zeros(len(numbers), np.int32)}
        if self.vocabulary.characters is not None:
            shape = stream["tokens"].shape
            flat = stream["tokens"].reshape(-1), source[:, :-1].reshape(-1)
            characters = self.store.characters(*flat).astype(np.int32)
            characters[~real[:, :-1].reshape(-1)] = 0
            stream["characters"] = characters.reshape(*shape, -1)
        return stream

    def _passes_of(
        self, position: np.ndarray, real: np.ndarray, shuffled: np.ndarray
    ) -> Iterator[tuple[np.ndarray, int | None]]:
        """Yields (positions of a pass, bool of the shape of `position`; its number, None for the order of the corpus)
        for the positions that are real."""
        corpus = real & ~shuffled[:, None]
        if corpus.any():
            yield corpus, None
        number = np.where(real & shuffled[:, None], position // self.positions, -1)
        for pass_ in np.unique(number[number >= 0]).tolist():
            yield number == pass_, pass_

    def _source(self, pass_: Pass, position: np.ndarray, backward: bool) -> np.ndarray:
        """Returns the indices in the store of the tokens at positions of a pass; -1 at marks."""
        rank = np.searchsorted(pass_.begins, position, side="right") - 1
        sentence, inside = rank if pass_.order is None else pass_.order[rank], position - pass_.begins[rank]
        bounds = self.store.sentences
        return np.where(inside, bounds[sentence + 1] - inside if backward else bounds[sentence] + inside - 1, -1)

    @functools.lru_cache(maxsize=2 * PASSES + 1)  # noqa: B019 - one more to evaluate; a run has few of these objects
    def _pass(self, number: int | None, independent: bool) -> Pass:
        """Returns the order of a pass; an independent one of the backward stream."""
        sentences = np.asarray(self.store.sentences)
        count = len(sentences) - 1
        if number is None:
            return Pass(None, sentences + np.arange(count + 1))
        order = np.arange(count, dtype=np.uint32 if count < 2**32 else np.int64)
        np.random.default_rng([self.seed, number, int(independent)]).shuffle(order)
        begins = np.zeros(count + 1, np.int64)
        np.cumsum(np.diff(sentences)[order] + 1, out=begins[1:])
        return Pass(order, begins)

    def statistics(self) -> dict[str, float]:
        """Returns the statistics of the corpus in its own order."""
        tokens = (self.positions + 1) / self.rows
        return {"examples": self.examples, "tokens_per_example": tokens, "padding": 1 - tokens / self.length}


def layout(config: SentenceStream, vocabulary: Vocabulary) -> Layout:
    """Makes the layout whose lead and tail mark sentences."""
    return make_layout(vocabulary, 0, ("bos", "cls"), ("eos", "sep"))


DEFINITION = FormatDef(
    SentenceStream, "sentence_stream-1", layout,
    lambda config, store, length, seed, layout, fingerprint, *_: SentenceStreamPlan(
        store, layout, length, fingerprint, config, seed),
    lambda c: (*TEXT_FIELDS, "following", "reset", *(BACKWARD + name for name in STREAM_FIELDS)),
    lambda c, length: length)
