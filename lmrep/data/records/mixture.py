"""Mixes the labelled examples of several data sets in fixed proportions.

The positions of a run are assigned to the data sets in blocks that repeat (`order.assign`), so that after any number of
sequences, the number from each data set differs from its fraction by less than one. Each data set has a separate random
order and separate epochs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.core.files import digest
from lmrep.data.order import assign, example_numbers, source_seed
from lmrep.data.records.encoding import join
from lmrep.data.records.examples import POOL, Examples


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
