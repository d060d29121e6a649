"""The examples of XLNet (Yang et al. 2019): windows of a continuous stream, whose last part is a pair of texts.

    [reused] A <sep> B <sep> <cls>

The documents form one stream, each followed by its end of document. A window starts with `reuse` tokens of the stream,
whose states a network with a memory keeps; the next window starts right after them, so that its text continues the text
in the memory. Then A, the text that follows them, and B: with probability 1/2 the text that follows A, else text from
another position. Both end where a sentence ends. A ends at a random one of the ends that fit; if none fits, B is random
text. If both texts are too long together, the longer one loses its last tokens, one at a time, or B if they are equal.
Token types are 0 up to the first <sep>, 1 up to the second one, and 2 for <cls>. Pairs are labelled as in BERT's
next-sentence prediction.

Example r of each batch continues example r of the previous one (`order=contiguous`), except where `reset` is 1. With
`bidirectional`, the second half of every batch reads the stream backward, token by token, and has `reversed` 1; the
texts of these examples are the mirror images of such texts. Evaluation reads forward.

Nothing is stored: an example is computed from its number. A random text comes from anywhere in the split; in the
released code, from the part of the stream that the same index of the batch reads. Windows that would be shorter than an
example, at the end of the stream, are left out, as there.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.dataset import Batch
from lmrep.data.formats.base import PAIR_FIELDS, FormatDef, Layout, StorePlan, make_layout
from lmrep.data.order import contiguous_numbers, example_numbers, uniform
from lmrep.data.store.token_store import Store

RANDOM, CUT, START = range(3)  # the random choices of an example
NONE, SEPARATOR, CLASSIFIER = -1, -2, -3  # in place of positions of the stream


@dataclass(frozen=True)
class StreamPair:
    """Settings of the format `stream_pair`."""

    reuse: int = setting(0, "tokens of a window that the next one starts after; 0: half of the length", at_least=0)
    bidirectional: bool = setting(True, "whether half of each batch reads the text backward (evaluation never does)")
    order: str = setting("contiguous", "each example continues the one of the previous batch, or examples in random "
                         "order", choices=("contiguous", "shuffled"))
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own pairs", at_least=1)


class Pairs(NamedTuple):
    """The texts of a batch of examples, int64[b] each. Positions count in the direction that the example reads."""

    begin: np.ndarray  # of the reused tokens and A
    a_end: np.ndarray
    b_begin: np.ndarray
    b_end: np.ndarray
    label: np.ndarray  # 0: B follows A; 1: it is random


@dataclass(frozen=True, eq=False)
class StreamPairPlan(StorePlan):
    """The examples of a split.

    Examples 0 to `rows` - 1 are the windows of the stream, in its order; then come the windows of the reversed stream,
    if half of a batch reads it, and then the repetitions of both."""

    config: StreamPair  # of the format
    seed: int  # decides the texts

    @property
    def contiguous(self) -> bool:
        return self.config.order == "contiguous"

    @property
    def reuse(self) -> int:
        """The number of tokens between the starts of two windows."""
        return self.config.reuse or self.length // 2

    @property
    def capacity(self) -> int:
        """The number of tokens of A and B together."""
        return self.length - self.reuse - self.layout.special

    @functools.cached_property
    def _firsts(self) -> np.ndarray:
        """int64[k+1], the number of each document's first boundary."""
        documents = np.asarray(self.store.documents)
        return documents + np.arange(len(documents))

    @property
    def positions(self) -> int:
        """The length of the stream: tokens and ends of documents."""
        return int(self.begins[-1])

    @property
    def rows(self) -> int:
        """The number of windows of a pass in one direction."""
        return max(1, (self.positions - self.reuse - self.capacity - 1) // self.reuse + 1)

    @property
    def directions(self) -> int:
        """2 if half of each batch reads backward, otherwise 1."""
        return 2 if self.config.bidirectional else 1

    @property
    def examples(self) -> int:
        return self.config.duplicates * self.directions * self.rows

    @property
    def evaluation_examples(self) -> int:
        return self.rows

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        if not self.contiguous:
            return example_numbers(self.examples, seed, positions)
        step, index = np.divmod(positions, batch_size)
        backward = batch_size // 2 if self.directions == 2 else 0  # of a batch
        numbers = np.empty_like(positions)
        for direction, first, size in ((0, 0, batch_size - backward), (1, batch_size - backward, backward)):
            selected = (index >= first) & (index < first + size)
            if selected.any():
                examples = contiguous_numbers(self.rows, self.config.duplicates, size,
                                           (step * size + index - first)[selected], seed + direction)
                passed, window = np.divmod(examples, self.rows)
                rows = (passed * self.directions + direction) * self.rows + window
                numbers[selected] = np.where(examples < 0, -1, rows)
        return numbers

    def continues(self, previous: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return (previous >= 0) & (numbers == previous + 1) & (numbers % self.rows != 0)

    def gather(self, numbers: np.ndarray, length: int = 0) -> Batch:
        numbers = self.checked(numbers)
        filled, backward = numbers >= 0, self._backward(numbers)
        pairs = self.pairs(numbers)
        at = np.arange(self.length)
        first = (pairs.a_end - pairs.begin)[:, None]  # the position of the first <sep>
        second = first + 1 + (pairs.b_end - pairs.b_begin)[:, None]
        source = np.select(
            [at < first, at == first, at < second, at == second, at == second + 1],
            [pairs.begin[:, None] + at, SEPARATOR, pairs.b_begin[:, None] + at - first - 1, SEPARATOR, CLASSIFIER],
            NONE)
        source[~filled] = NONE
        real = source != NONE
        return {
            "tokens": self._tokens(source, backward),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, at, 0).astype(np.int32),
            "token_type_ids": np.where(real, np.int32(0) + (at > first) + (at > second), 0).astype(np.int32),
            "example": numbers.astype(np.int32),
            "pair_label": np.where(filled, pairs.label, 0).astype(np.int32),
            "reset": np.full(len(numbers), not self.contiguous, np.int32) * filled,
            "reversed": (filled & backward).astype(np.int32),
        }

    def _backward(self, numbers: np.ndarray) -> np.ndarray:
        return numbers // self.rows % self.directions == 1

    def pairs(self, numbers: np.ndarray) -> Pairs:
        """Computes the texts of examples; the texts of an empty example have no meaning."""
        numbers = np.maximum(numbers, 0)
        backward, end = self._backward(numbers), self.positions
        random_draw, cut_draw, start_draw = (uniform((self.seed, use), numbers) for use in (RANDOM, CUT, START))
        begin = np.minimum(numbers % self.rows * self.reuse, end)
        a_begin = np.minimum(begin + self.reuse, end)

        # The sentences that end inside of the capacity, one of which ends A.
        low = self._boundaries_up_to(a_begin, backward)
        high = self._boundaries_up_to(np.minimum(a_begin + self.capacity, end) - 1, backward)
        ends = high - low
        chosen = self._boundary(low + np.minimum((cut_draw * ends).astype(np.int64), np.maximum(ends - 1, 0)), backward)
        full = np.minimum(a_begin + self.capacity, end)
        a_end = np.where(ends > 0, chosen, full)
        is_random = (ends == 0) | (random_draw < 0.5)

        # A random text: some tokens of the stream, and the rest of the sentences that they begin and end in.
        least = np.clip(self.capacity - (a_end - a_begin), 1, end)
        start = (start_draw * (end - least + 1)).astype(np.int64)
        before = self._boundaries_up_to(start, backward) - 1
        b_begin = np.where(is_random, self._boundary(before, backward), a_end)
        # The text that follows A ends with a sentence, too, for which A may lose tokens below.
        after = self._boundaries_up_to(np.where(is_random, start + least, full) - 1, backward)
        b_end = self._boundary(after, backward)

        # Truncate the longer one of texts that are too long together.
        a, b = a_end - a_begin, b_end - b_begin
        a_length = np.minimum(a, np.maximum(self.capacity - self.capacity // 2, self.capacity - b))
        return Pairs(begin, a_end - a + a_length, b_begin, b_begin + np.minimum(b, self.capacity - a_length),
                     is_random.astype(np.int64))

    # The boundaries of a direction, positions at which a sentence or an end of document begins, are numbered from 0;
    # the last is the end of the stream. Those of the reversed stream are the others' mirror images.

    @property
    def _boundaries(self) -> int:
        return len(self.store.sentences) - 1 + len(self.store.documents) - 1

    def _boundaries_up_to(self, position: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Counts the boundaries at `position` int64[b] or before."""
        end = self.positions
        mirrored = self._boundaries + 1 - self._forward_up_to(end - position - 1)
        return np.where(backward, mirrored, self._forward_up_to(position))

    def _forward_up_to(self, position: np.ndarray) -> np.ndarray:
        inside = np.clip(position, 0, self.positions - 1)
        document = np.searchsorted(self.begins, inside, side="right") - 1
        # A document's end has the offset of the next one's first sentence, which thereby counts for it.
        boundaries = np.searchsorted(self.store.sentences, inside - document, side="right") + document
        return np.where(position < 0, 0, boundaries + (position >= self.positions))

    def _boundary(self, number: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Computes the positions of boundaries."""
        number = np.clip(np.where(backward, self._boundaries - number, number), 0, self._boundaries)
        document = np.minimum(np.searchsorted(self._firsts, number, side="right") - 1, len(self._firsts) - 2)
        position = np.asarray(self.store.sentences[np.minimum(number - document, len(self.store.sentences) - 1)])
        position = np.where(number == self._boundaries, self.positions, position + document)
        return np.where(backward, self.positions - position, position)

    def _tokens(self, source: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Reads the tokens i32[b, t] at positions of each example's stream."""
        _, tail, pad, _, last, end = self.layout
        tokens = self.stream(np.where(backward[:, None], self.positions - 1 - source, source), end)
        return np.select([source == NONE, source == SEPARATOR, source == CLASSIFIER], [pad, tail, last],
                         tokens).astype(np.int32)

    def statistics(self) -> dict[str, float]:
        """Returns the statistics of at most 1,000 examples, evenly spaced."""
        sample = np.linspace(0, self.examples - 1, min(self.examples, 1000)).astype(np.int64)
        pairs = self.pairs(sample)
        tokens = float((pairs.a_end - pairs.begin + pairs.b_end - pairs.b_begin).mean()) + self.layout.special
        return {"examples": self.examples, "tokens_per_example": tokens, "padding": 1 - tokens / self.length,
                "pair_label": float(pairs.label.mean()), "reversed": float(self._backward(sample).mean())}


def layout(config: StreamPair, vocabulary: Vocabulary) -> Layout:
    """Makes the layout, whose <eod>, <eos> or <sep> ends documents."""
    specials = make_layout(vocabulary, 2, ("cls",), ("sep",))
    end = next(vocabulary.specials[role] for role in ("eod", "eos", "sep") if role in vocabulary.specials)
    return specials._replace(lead=None, last=specials.lead, end=end)


def plan(config: StreamPair, store: Store, length: int, seed: int, layout: Layout, fingerprint: str,
         *_: Any) -> StreamPairPlan:
    """Makes the plan of a split. Raises UserError if `length` leaves no space for a pair."""
    result = StreamPairPlan(store, layout, length, fingerprint, config, seed)
    if result.capacity < 2:
        least = config.reuse + 5 if config.reuse else 9
        raise UserError(f"length is {length}, too short for an example of format 'stream_pair' with its special tokens "
                        f"after {result.reuse} reused ones; set it to {least} or more")
    return result


DEFINITION = FormatDef(StreamPair, "stream_pair-1", layout, plan, lambda c: (*PAIR_FIELDS, "reset", "reversed"),
                       lambda c, length: (c.reuse or length // 2) if c.order == "contiguous" else 0)
