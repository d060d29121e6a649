"""Batches of labelled examples, sorted by length or packed, and of several data sets in fixed proportions.

In a mixture, the positions of a run are assigned to the data sets in blocks that repeat (`order.assign`), so that after
any number of sequences, the number from each data set differs from its fraction by less than one. Each data set has a
separate random order and separate epochs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lmrep.core.files import digest
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.characters import add_characters
from lmrep.data.dataset import Batch, Dataset
from lmrep.data.formats.base import ranges
from lmrep.data.formats.packed import best_fit
from lmrep.data.order import assign, example_numbers, source_seed
from lmrep.data.records.encoding import Source, Units, join

# Lengths that batches may be padded to. A program is compiled for each length that is used; PROGRAM is its cost, in
# padded tokens of an epoch. For a network of 2 layers of width 128 it is four times as many, for wide ones it is fewer.
BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
PROGRAM = 5_000
POOL = 64  # batches whose sequences are sorted by length together


@dataclass(frozen=True, eq=False)
class Examples(Dataset):
    """The tokenized examples of a split.

    A sequence holds one unit, or, if packed, several units that do not attend to each other. If grouped, it holds the k
    units of one example, such as its choices, and arrays have the axes [b, k, t] in place of [b, t]."""

    units: Units = field(repr=False)  # the tokens
    rows: np.ndarray = field(repr=False)  # int64[r+1]; sequence i holds the units `order[rows[i]:rows[i + 1]]`
    order: np.ndarray = field(repr=False)  # int64[u]
    length: int  # tokens of the longest sequence
    pad: int  # id of padding
    vocabulary: Vocabulary = field(repr=False)  # the vocabulary of the tokenizer
    fingerprint: str  # a hash of everything that determines the batches
    group: int = 0  # k for grouped units, or 0
    batch_tokens: int = 0  # most tokens of a training batch, with padding; 0: batches have `batch_size` sequences
    fills = True

    @property
    def examples(self) -> int:
        """The number of sequences."""
        return len(self.rows) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int64[r], tokens of each sequence, or of the longest unit of a group. Of a unit and its source, the longer
        one counts."""
        return self._lengths(sizes(self.units))

    def _lengths(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the tokens of each sequence, int64[r], or of the longest unit of a group, given the units' sizes
        int64[u]."""
        sizes = sizes[self.order]
        if self.group:
            return np.maximum.reduceat(sizes, self.rows[:-1])
        totals = np.concatenate([[0], np.cumsum(sizes)])
        return totals[self.rows[1:]] - totals[self.rows[:-1]]

    @functools.cached_property
    def slots(self) -> int:
        """The largest number of units of a sequence."""
        return int(np.diff(self.rows).max())

    def steps_per_epoch(self, batch_size: int) -> int:
        """Returns the number of batches that contain every sequence once; the last may have empty sequences."""
        return len(self._cuts(batch_size)) - 1 if self.batch_tokens else -(-self.examples // batch_size)

    def sequences_per_step(self, batch_size: int) -> float:
        """Returns the mean number of sequences in a training batch."""
        return self.examples / self.steps_per_epoch(batch_size) if self.batch_tokens else batch_size

    def batch_rows(self, length: int | tuple[int, int], batch_size: int) -> int:
        if not self.batch_tokens:
            return batch_size
        longest = max(length) if isinstance(length, tuple) else length
        return min(batch_size, max(1, self.batch_tokens // (longest * max(1, self.group))))

    @functools.cached_property
    def _padded(self) -> np.ndarray:
        """int64[r], the length to which each sequence is padded as the longest of its batch."""
        return np.array([self.bucket(length) for length in range(int(self.lengths.max()) + 1)])[self.lengths]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a run has a few of these objects, for all its time
    def _cuts(self, batch_size: int) -> np.ndarray:
        """Returns the first sequence of each batch of an epoch among the sequences sorted by padded length, the longest
        first, int64[steps+1]; last = number of sequences. It is the same for all epochs."""
        padded, cuts = -np.sort(-self._padded), [0]
        while cuts[-1] < len(padded):
            cuts.append(min(len(padded), cuts[-1] + self.batch_rows(int(padded[cuts[-1]]), batch_size)))
        return np.array(cuts)

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """Returns the sequences at some positions of a training run. Every epoch has each sequence once, and -1 at the
        end of its last batch. Sequences of one batch have similar lengths."""
        steps, index = np.divmod(positions, batch_size)
        epochs, steps = np.divmod(steps, self.steps_per_epoch(batch_size))
        numbers = np.empty_like(index)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            numbers[chosen] = self._epoch(int(epoch), batch_size, seed)[steps[chosen], index[chosen]]
        return numbers

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a run has a few of these objects, for all its time
    def _epoch(self, epoch: int, batch_size: int, seed: int) -> np.ndarray:
        """Orders the sequences of an epoch, int64[steps, batch_size]: at random, sorted by length within each pool of
        batches, with the batches of a pool in random order. With `batch_tokens`, all sequences are sorted by padded
        length, those of equal length at random, and cut into batches, which end with -1 and are in random order."""
        n, steps = self.examples, self.steps_per_epoch(batch_size)
        if self.batch_tokens:
            order = example_numbers(n, seed, epoch * n + np.arange(n))
            order = order[np.argsort(-self._padded[order], kind="stable")]
            cuts, batches = self._cuts(batch_size), np.full((steps, batch_size), -1)
            sizes = np.diff(cuts)
            batches[np.repeat(np.arange(steps), sizes), ranges(sizes)] = order
            return np.random.default_rng([seed, epoch]).permutation(batches)
        order = np.full(steps * batch_size, -1)
        order[:n] = example_numbers(n, seed, epoch * n + np.arange(n))
        random = np.random.default_rng([seed, epoch])
        batches = []
        for first in range(0, len(order), POOL * batch_size):
            pool = order[first : first + POOL * batch_size]
            lengths = np.where(pool < 0, np.iinfo(np.int64).max, self.lengths[pool])
            batches.append(random.permutation(pool[np.argsort(lengths, kind="stable")].reshape(-1, batch_size)))
        return np.concatenate(batches)

    def evaluation_numbers(self, positions: np.ndarray, batch_size: int, count: int) -> np.ndarray:
        """Returns the first `count` sequences, sorted by length; -1 after the last."""
        valid = positions < count
        return np.where(valid, self._by_length(count)[np.where(valid, positions, 0)], -1)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - as above
    def _by_length(self, count: int) -> np.ndarray:
        return np.argsort(self.lengths[:count], kind="stable")

    def batch_length(self, numbers: np.ndarray) -> int | tuple[int, int]:
        present = numbers[numbers >= 0]
        if self.units.source is None:
            return self.bucket(self.lengths[present].max(initial=1))
        tokens, source = (self._lengths(part.lengths) for part in (self.units, self.units.source))
        return self.bucket(tokens[present].max(initial=1)), self.bucket(source[present].max(initial=1))

    def bucket(self, longest: int) -> int:
        """Returns the padded length of a batch whose longest sequence has `longest` tokens."""
        return next((bucket for bucket in self._buckets if bucket >= longest), self.length)

    @functools.cached_property
    def _buckets(self) -> tuple[int, ...]:
        """The padded lengths, ascending; the last is `length`. Those of BUCKETS for which the padded tokens of an epoch
        and the programs cost least; all of them for units with a source, which have another length."""
        candidates = [*(bucket for bucket in BUCKETS if bucket < self.length), self.length]
        if self.units.source is not None:
            return tuple(candidates)
        covered = [0, *np.searchsorted(np.sort(self.lengths), candidates, side="right").tolist()]
        best = [(0, ())]  # of the sequences up to each candidate: (cost, lengths)
        for i, bucket in enumerate(candidates, 1):
            best.append(min((cost + (covered[i] - covered[j]) * bucket * max(1, self.group) + PROGRAM,
                             (*lengths, bucket)) for j, (cost, lengths) in enumerate(best)))
        return best[-1][1]

    def gather(self, numbers: np.ndarray, length: int | tuple[int, int] = 0) -> Batch:
        """Makes the batch of the sequences `numbers`, int64[b]; -1 for an empty one. `length` is a `batch_length`; 0:
        the longest.

        Returns:
          `tokens`, `segment_ids`, `positions`, `token_type_ids` i32[b, t] (or [b, k, t]); `example` i32[b], the number
          of each sequence; `unit` i32[b, n], the units of each sequence, -1 for none; `first` and `last` i32[b, n], the
          positions of each unit's first and last token; every column of the units: [b, n, ...] with -1 for none, or
          [b, t, ...] with -1 (floats: 0) for special tokens and padding; `characters`, if the tokenizer has them; and,
          if units have a source, `source` with `tokens`, `segment_ids` and `positions` i32[b, s].
        """
        lengths = length if isinstance(length, tuple) else (length, length)
        length, source_length = (padded or self.length for padded in lengths)
        units = self.units
        filled = numbers >= 0
        rows = np.where(filled, numbers, 0)
        counts = np.where(filled, self.rows[rows + 1] - self.rows[rows], 0)
        sequence, slot = np.repeat(np.arange(len(numbers)), counts), ranges(counts)
        unit = self.order[np.repeat(self.rows[rows], counts) + slot]
        line, shape = sequence, (len(numbers), length)
        if self.group:
            line, shape = sequence * self.group + slot, (len(numbers), self.group, length)
        segment = np.ones_like(slot) if self.group else slot + 1
        sizes = units.lengths[unit]
        begin, inside, target = _token_positions(sizes, line, length)
        source = np.repeat(units.offsets[unit], sizes) + inside

        tokenwise = partial(_in_lines, target, shape)

        def unitwise(values: np.ndarray, padding: float = -1) -> np.ndarray:
            dtype = np.float32 if values.dtype.kind == "f" else np.int32
            array = np.full((len(numbers), self.slots, *values.shape[1:]), padding, dtype)
            array[sequence, slot] = values
            return array

        columns = {name: tokenwise(values[source], -1) if name in units.token_columns else unitwise(values[unit])
                   for name, values in units.columns.items()}
        return add_characters({
            "tokens": tokenwise(units.tokens[source], self.pad), "segment_ids": tokenwise(np.repeat(segment, sizes)),
            "positions": tokenwise(inside), "token_type_ids": tokenwise(units.token_types[source]),
            "example": numbers.astype(np.int32), "unit": unitwise(unit), "first": unitwise(begin, 0),
            "last": unitwise(np.maximum(begin + sizes - 1, 0), 0), **columns,
            **({} if units.source is None else
               {"source": self._source(units.source, unit, line, segment, (len(numbers), source_length))}),
        }, self.vocabulary)

    def _source(
        self, source: Source, unit: np.ndarray, line: np.ndarray, segment: np.ndarray, shape: tuple[int, int]
    ) -> Batch:
        """Makes `source` of a batch: arranges the source texts of `unit`, int64[n], in an array [b, s], each in its
        `line` and with its `segment`."""
        sizes = source.lengths[unit]
        _, inside, target = _token_positions(sizes, line, shape[1])

        tokenwise = partial(_in_lines, target, shape)
        return {"tokens": tokenwise(source.tokens[np.repeat(source.offsets[unit], sizes) + inside], self.pad),
                "segment_ids": tokenwise(np.repeat(segment, sizes)), "positions": tokenwise(inside)}

    def statistics(self) -> dict[str, float]:
        """Returns `Dataset.statistics`, with the `padding` of batches padded to the longest sequence of all."""
        tokens = float(self.lengths.mean())
        return {"examples": self.examples, "tokens_per_example": tokens, "padding": 1 - tokens / self.length}


def _token_positions(sizes: np.ndarray, line: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the positions of texts of `sizes` int64[n], in order, in the lines of an array [lines, length]; `line`
    int64[n] ascends.

    Returns:
      (the position of each text's first token in its line int64[n], the position of each token in its text, the index
      of each token in the flattened array).
    """
    starts = np.cumsum(sizes) - sizes
    firsts = np.flatnonzero(np.diff(line, prepend=-1))
    begin = starts - np.repeat(starts[firsts], np.diff(firsts, append=len(line)))
    inside = ranges(sizes)
    return begin, inside, np.repeat(line * length + begin, sizes) + inside


def _in_lines(target: np.ndarray, shape: tuple[int, ...], values: np.ndarray, padding: int = 0) -> np.ndarray:
    """Makes an array of `shape` with a value for each token at its index in the flattened array, int64[n]; elsewhere
    0, or `padding` if they are integers."""
    dtype = np.float32 if values.dtype.kind == "f" else np.int32
    array = np.full((int(np.prod(shape)), *values.shape[1:]), padding if dtype == np.int32 else 0, dtype)
    array[target] = values
    return array.reshape(*shape, *values.shape[1:])


def arrange(
    units: Units, vocabulary: Vocabulary, pad: int, fingerprint: str, packed: int = 0, group: int = 0,
    batch_tokens: int = 0,
) -> Examples:
    """Makes Examples of units.

    Args:
      units: the units.
      vocabulary, pad, fingerprint, batch_tokens: as for `Examples`.
      packed: tokens of a sequence that holds several units; 0: a sequence holds one unit.
      group: number of consecutive units of a sequence, such as choices; 0: not grouped.
    """
    count = len(units.example)
    rows, order = np.arange(0, count + 1, group or 1), np.arange(count)
    longest = int(sizes(units).max())
    length = packed or next((bucket for bucket in BUCKETS if bucket >= longest), longest)
    if packed:
        longest_first = np.argsort(-sizes(units), kind="stable")
        sequence = best_fit(sizes(units)[longest_first], packed)
        rows = np.concatenate([[0], np.cumsum(np.bincount(sequence))])
        order = longest_first[np.argsort(sequence, kind="stable")]
    return Examples(units, rows, order, length, pad, vocabulary, fingerprint, group, batch_tokens)


def sizes(units: Units) -> np.ndarray:
    """Returns the tokens of each unit, or of its source if that is longer, int64[u]."""
    return units.lengths if units.source is None else np.maximum(units.lengths, units.source.lengths)


# Mixtures


@dataclass(frozen=True, eq=False)
class MixedExamples(Examples):
    """Examples of several data sets, the sources. The sequences of a source have consecutive numbers."""

    names: tuple[str, ...] = ()  # the names of the sources
    bounds: tuple[int, ...] = ()  # the number of each source's first sequence; last = number of sequences
    block_counts: tuple[int, ...] = ()  # sequences of each source in a block; () if they are not mixed, to evaluate

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """Returns the sequences at some positions of a training run. The position alone determines the source. The
        sequences of one source in a batch have similar lengths."""
        pools, index = np.divmod(positions, POOL * batch_size)
        numbers = np.empty_like(index)
        for pool in np.unique(pools):
            chosen = pools == pool
            numbers[chosen] = self._pool(int(pool), batch_size, seed)[index[chosen]]
        return numbers

    @functools.lru_cache(maxsize=2)  # noqa: B019 - as in Examples
    def _pool(self, pool: int, batch_size: int, seed: int) -> np.ndarray:
        """Orders the sequences of POOL batches, int64[POOL * batch_size]. The next sequences of each source are sorted
        by length and distributed in this order over the batches in a random order."""
        positions = np.arange(POOL * batch_size)
        sources, index = assign(self.block_counts, pool * len(positions) + positions)
        ranks = np.random.default_rng([seed, pool]).permutation(POOL)[positions // batch_size]
        numbers = np.empty_like(index)
        for source, (first, last) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            chosen = np.flatnonzero(sources == source)
            examples = first + example_numbers(last - first, source_seed(seed, source), index[chosen])
            by_length = examples[np.argsort(self.lengths[examples], kind="stable")]
            numbers[chosen[np.argsort(ranks[chosen], kind="stable")]] = by_length
        return numbers

    def fractions(self) -> np.ndarray:
        """Returns the fraction of the sequences from each source, float64[sources]."""
        return np.array(self.block_counts) / sum(self.block_counts)

    def with_counts(self, block_counts: tuple[int, ...]) -> "MixedExamples":
        """Returns these examples in other proportions."""
        return dataclasses.replace(self, block_counts=block_counts,
                                   fingerprint=digest([self.fingerprint, block_counts]))


def mix(names: Sequence[str], parts: Sequence[Examples]) -> MixedExamples:
    """Joins the examples of several sources, which are not grouped. `MixedExamples.with_counts` sets their proportions.
    """
    units = np.cumsum([0, *(len(part.units.example) for part in parts)])
    rows = [part.rows[:-1] + start for part, start in zip(parts, units, strict=False)]
    return MixedExamples(
        join([part.units for part in parts]), np.concatenate([*rows, units[-1:]]),
        np.concatenate([part.order + start for part, start in zip(parts, units, strict=False)]),
        max(part.length for part in parts), parts[0].pad, parts[0].vocabulary,
        digest([part.fingerprint for part in parts]),
        names=tuple(names), bounds=tuple(np.cumsum([0, *(part.examples for part in parts)]).tolist()))
