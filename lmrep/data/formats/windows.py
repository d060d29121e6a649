"""Windows of the stream whose length differs from batch to batch (Merity et al., 2018).

A base is `length` for 95 % of the batches, else half of it. The length of a batch is drawn from a normal distribution
with this mean and a standard deviation of 5, rounded down, and at least 5. The released code draws each length by
itself. Here an epoch has the quantiles of this distribution, one in each batch, in a random order, so that every epoch
has as many batches and a step's window is computed from its number.

As in the released code, the stream is split into as many columns of equal size as a batch has examples, what is left
over is dropped, each example reads the next window of its column, and every epoch starts where the columns begin.
Windows are longer, where needed, by about as many tokens each, so that the last ends with the column.

A batch is padded to a multiple of 8, so that few lengths are compiled. Evaluation reads examples of `length`.
"""

import functools
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from lmrep.data.dataset import Batch
from lmrep.data.formats.plans import Plan
from lmrep.data.order import example_numbers

SHORT, DEVIATION, LEAST = 0.05, 5, 5  # the fraction of short windows, the standard deviation, the shortest window
MULTIPLE = 8  # of the padded length
BITS = 24  # of the number of a window that are its length


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
