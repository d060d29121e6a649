"""The corpus as one stream of tokens, split into examples: how GPT-2, Transformer-XL and word-level models are trained.

Documents are concatenated, each followed by the tokenizer's end of text ([EOS], or [SEP] if it has none), and every
`length` consecutive tokens are an example. Nothing else is added, no token is left out, and only the last example may
be short.

`order` is the order in which training shows the examples. `shuffled` is a random order, for models without a memory.
With `contiguous`, the stream is split into as many chunks as a batch has examples, and example r of each batch
continues example r of the previous batch (Dai et al. 2019), except where `reset` is 1; see `order.contiguous_numbers`.

With `lengths=normal`, training reads windows of the stream whose length differs from batch to batch, as for AWD-LSTM
(Merity et al., 2018), and the learning rate of a step is multiplied by that length / `length`.
A base is `length` for 95 % of the batches, else half of it. The length of a batch is drawn from a normal distribution
with this mean and a standard deviation of 5, rounded down, and at least 5. The released code draws each length by
itself. Here an epoch has the quantiles of this distribution, one in each batch, in a random order, so that every epoch
has as many batches and a step's window is computed from its number.
As in the released code, the stream is split into as many columns of equal size as a batch has examples, what is left
over is dropped, each example reads the next window of its column, and every epoch starts where the columns begin.
Windows are longer, where needed, by about as many tokens each, so that the last ends with the column.
A batch is padded to a multiple of 8, so that few lengths are compiled. Evaluation reads examples of `length`.

`isolate` separates documents: each is a segment with its own positions that does not attend to the others, and an
example that starts with the first token of a document has `reset` 1 as well. Without it, as published, an example is
one segment, whose positions attend across document boundaries.
"""

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.dataset import Batch
from lmrep.data.formats.base import TEXT_FIELDS, VARIES, FormatDef, Layout, Spans, make_layout
from lmrep.data.formats.plans import Plan, table
from lmrep.data.order import example_numbers
from lmrep.data.store.token_store import Store

SHORT, DEVIATION, LEAST = 0.05, 5, 5  # the fraction of short windows, the standard deviation, the shortest window
MULTIPLE = 8  # of the padded length
BITS = 24  # of the number of a window that are its length


@dataclass(frozen=True)
class Stream:
    """Settings of the format `stream`."""

    order: str = setting("shuffled", "examples in random order, or each continuing the one of the previous batch",
                         choices=("shuffled", "contiguous"))
    lengths: str = setting("fixed", "of training batches with order=contiguous: fixed; or normal, random ones around "
                           "`length`, with a learning rate in proportion, for recurrent networks",
                           choices=("fixed", "normal"))
    isolate: bool = setting(False, "whether documents do not attend to each other")
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)

    def identity(self) -> dict[str, Any]:
        """Returns the settings in fingerprints. Plans of a fixed length keep those that they had before `lengths`."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("lengths", "fixed")}


def layout(config: Stream, vocabulary: Vocabulary) -> Layout:
    """Makes the layout of documents that each end with the end of text."""
    return make_layout(vocabulary, int(config.isolate), lead=(), tail=("eos", "sep"))


def spans(config: Stream, store: Store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """Yields the examples in the order of the corpus. Nothing is random.

    A span ends with its document, and the end of text follows it, or with its example. An example that starts with an
    end of text starts with a span of no tokens.
    """
    bounds = store.sentences[store.documents]
    begins = bounds + np.arange(len(bounds))  # of documents in the stream with ends of text; last = its length
    starts = np.arange(0, begins[-1], length)  # of examples
    span_begins = np.union1d(starts, begins[:-1])
    document = np.searchsorted(begins, span_begins, side="right") - 1
    span_ends = np.append(span_begins[1:], begins[-1])
    lengths = span_ends - span_begins - (span_ends == begins[document + 1])
    first = np.searchsorted(span_begins, starts)
    resets = np.full(len(starts), not contiguous(config))
    if config.isolate:
        resets |= span_begins[first] == begins[document[first]]
    yield Spans(np.append(first, len(span_begins)), span_begins - document, lengths.astype(np.int32),
                {"reset": resets.astype(np.int8)})


def contiguous(config: Stream) -> bool:
    """Tells whether examples continue each other from batch to batch."""
    return config.order == "contiguous"


@dataclass(frozen=True, eq=False)
class WindowPlan(Plan):
    """The examples of a split, and windows of it.

    Examples below `examples` are those of `length` tokens. Numbers from there on are windows: `examples` +
    (start << BITS) + length, where `start` is a position of the stream."""

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        step, column = np.divmod(positions, batch_size)
        size = int(self.begins[-1]) // batch_size  # of a column
        epoch, step = np.divmod(step, len(window_lengths(size, self.length)))
        numbers = np.empty_like(positions)
        for each in np.unique(epoch):
            bounds, selected = window_bounds(size, self.length, seed, int(each)), epoch == each
            begin, end = bounds[step[selected]], bounds[step[selected] + 1]
            numbers[selected] = self.examples + (column[selected] * size + begin << BITS) + end - begin
        return numbers

    def windows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (start, length) of windows, int64[b] each."""
        return np.divmod(numbers - self.examples, 1 << BITS)

    def continues(self, previous: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        start, length = self.windows(previous)
        ordered = super().continues(previous, numbers)
        return np.where(numbers >= self.examples,
                        (previous >= self.examples) & (start + length == self.windows(numbers)[0]), ordered)

    def batch_length(self, numbers: np.ndarray) -> int:
        windows = numbers[numbers >= self.examples]
        return -(-int(self.windows(windows)[1].max()) // MULTIPLE) * MULTIPLE if len(windows) else self.length

    def gather(self, numbers: np.ndarray, length: int = 0) -> Batch:
        numbers = np.asarray(numbers, np.int64)
        if not (numbers >= self.examples).any():
            return super().gather(numbers) | {"rate_factor": (numbers >= 0).astype(np.float32)}
        if (numbers < self.examples).any():
            raise IndexError("a batch of a plan has windows and other examples")
        (start, size), tail = self.windows(numbers), self.layout.tail
        at = np.arange(length or self.batch_length(numbers))
        real = (at < size[:, None]).astype(np.int32)
        return {
            "tokens": np.where(real, self.stream(start[:, None] + at, tail), self.layout.pad).astype(np.int32),
            "segment_ids": real, "positions": (at * real).astype(np.int32), "token_type_ids": np.zeros_like(real),
            "example": (start // self.length).astype(np.int32),  # the example of `length` that it begins in
            "reset": np.zeros(len(numbers), np.int32),
            "following": np.where(start + size < self.begins[-1], self.stream(start + size, tail), -1).astype(np.int32),
            "rate_factor": size.astype(np.float32) / np.float32(self.length)}


@functools.lru_cache(maxsize=8)
def window_lengths(size: int, length: int) -> np.ndarray:
    """Returns the lengths int64[w] of the windows that a column of `size` tokens is split into, in a fixed order. They
    add up to `size`."""
    def quantiles(base: float, count: int) -> list[int]:
        normal = NormalDist(base, DEVIATION)
        return [max(LEAST, int(normal.inv_cdf((i + 0.5) / count))) for i in range(count)]

    def lengths(count: int) -> np.ndarray:
        short = round(SHORT * count)
        return np.array(quantiles(length, count - short) + quantiles(length / 2, short), np.int64)

    count = max(1, int(size / lengths(1000).mean()))
    while count > 1 and lengths(count).sum() > size:
        count -= 1
    chosen = lengths(count)
    # What is missing is spread evenly. A column that is shorter than a window is one.
    return chosen + np.diff((size - chosen.sum()) * np.arange(count + 1) // count)


@functools.lru_cache(maxsize=8)
def window_bounds(size: int, length: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the bounds int64[w+1] of the windows of an epoch in a column of `size` tokens, from 0 to `size`."""
    lengths = window_lengths(size, length)
    order = example_numbers(len(lengths), seed, epoch * len(lengths) + np.arange(len(lengths)))
    return np.append(0, np.cumsum(lengths[order]))


def plan(config: Stream, *arguments: Any) -> Plan:
    """Makes the plan of a split. Raises UserError if settings do not fit each other."""
    fixed = table(spans, contiguous=contiguous)(config, *arguments)
    if config.lengths == "fixed":
        return fixed
    if config.isolate or not contiguous(config):
        raise UserError("format.lengths is normal, which needs format.order=contiguous and format.isolate=False; set "
                        "these, or format.lengths=fixed")
    return WindowPlan(**vars(fixed))


DEFINITION = FormatDef(
    Stream, "stream-1", layout, plan,
    lambda c: (*TEXT_FIELDS, "reset", *(("following",) if contiguous(c) else ()),
               *(("rate_factor",) if c.lengths == "normal" else ())),
    lambda c, length: (VARIES if c.lengths == "normal" else length) if contiguous(c) else 0, lambda c: c.isolate)
