"""Corpora mixed in fixed proportions: Wikipedia and books, or many languages sampled with a temperature.

The positions of a run are assigned to the sources in blocks that repeat (`order.assign`), so that after any number
of examples each source has had its fraction of them to within less than one example. The position alone determines the
source and the example. Nothing is stored: a run resumes at any step, on any number of hosts. Each source has its own
random order and its own epochs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.dataset import Batch, Dataset
from lmrep.data.formats.base import FIELDS
from lmrep.data.order import assign, example_numbers, ranked_block, source_seed
from lmrep.data.store.token_store import Store

BLOCK = 10_000  # the largest block: fractions are rounded to multiples of 1 / BLOCK


class DataSource(NamedTuple):
    """A corpus or a labelled data set of an experiment."""

    name: str  # names the source in messages and metrics; "" if there is only one
    weight: float  # number of examples in proportion to the other sources
    data: Any  # the config of the source: `corpora.Config` or `records.Config`
    objective: Any = None  # the config of the task for this source


@dataclass(frozen=True, eq=False)
class Sources:
    """One split of each source, in place of the `Store` of a single corpus."""

    names: tuple[str, ...]  # of the sources
    stores: tuple[Store, ...]  # of the sources
    block_counts: tuple[int, ...]  # examples of each source in a block
    vocabulary: Vocabulary = field(repr=False)  # of all of them

    @property
    def split(self) -> str:
        return self.stores[0].split

    @property
    def tokens(self) -> int:
        return sum(store.tokens for store in self.stores)

    @property
    def fingerprint(self) -> str:
        """Identifies the content of every source's split, their order and their proportions."""
        return digest([[store.fingerprint for store in self.stores], self.block_counts])


@dataclass(frozen=True, eq=False)
class Mixture(Dataset):
    """A dataset composed of the plans of several sources.

    Examples are numbered source after source."""

    plans: tuple[Dataset, ...]  # of the sources, all of one format and length
    store: Sources = field(repr=False)  # their splits and proportions

    def __post_init__(self):
        if any(plan.contiguous for plan in self.plans):
            raise ValueError("the examples of a mixture alternate between its sources, and cannot be contiguous")
        if self.examples > np.iinfo(FIELDS["example"].dtype).max:
            raise UserError(f"the mixture has {self.examples:,} examples; expected fewer than 2^31: lower duplicates")

    @property
    def examples(self) -> int:
        return sum(plan.examples for plan in self.plans)

    @property
    def length(self) -> int:
        return self.plans[0].length

    @property
    def fingerprint(self) -> str:
        return digest([[plan.fingerprint for plan in self.plans], self.store.block_counts])[:16]

    @property
    def evaluation_examples(self) -> int:
        """The number of examples that an evaluation can show in proportion without showing one twice: those up to the
        end of the source that ends first."""
        counts, total = self.store.block_counts, sum(self.store.block_counts)
        block_sources, _ = ranked_block(counts)
        ends = []  # for each source, the position at which it would start again
        for source, (plan, count) in enumerate(zip(self.plans, counts, strict=True)):
            block, rank = divmod(plan.examples, count)
            ends.append(block * total + int(np.flatnonzero(block_sources == source)[rank]))
        return min(ends)

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """Returns the examples at some positions of a training run; each source has its own order."""
        def shuffled(source: int, index: np.ndarray) -> np.ndarray:
            return example_numbers(self.plans[source].examples, source_seed(seed, source), index)

        return self._numbers(positions, shuffled)

    def evaluation_numbers(self, positions: np.ndarray, batch_size: int, count: int) -> np.ndarray:
        """Returns the examples at some positions of an evaluation; `count` is at most `evaluation_examples`."""
        shown = positions < count
        return np.where(shown, self._numbers(np.where(shown, positions, 0), lambda source, index: index), -1)

    def _numbers(self, positions: np.ndarray, example: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
        sources, index = assign(self.store.block_counts, positions)
        numbers = np.empty_like(index)
        for source, first in enumerate(self._first_numbers[:-1]):
            selected = sources == source
            numbers[selected] = first + example(source, index[selected])
        return numbers

    @property
    def _first_numbers(self) -> np.ndarray:
        """The number of each source's first example; last = number of examples."""
        return np.concatenate([[0], np.cumsum([plan.examples for plan in self.plans])])

    @property
    def vocabulary(self) -> Vocabulary:
        return self.store.vocabulary

    def gather(self, numbers: np.ndarray, length: int = 0) -> Batch:
        numbers, first_numbers = self.checked(numbers), self._first_numbers
        # Empty examples are taken from the first source.
        sources = (np.searchsorted(first_numbers, numbers, side="right") - 1).clip(0)
        indices = [np.flatnonzero(sources == source) for source in range(len(self.plans))]
        batches = [plan.gather(np.where(numbers[index] >= 0, numbers[index] - first, -1))
                   for plan, index, first in zip(self.plans, indices, first_numbers[:-1], strict=True)]
        order = np.argsort(np.concatenate(indices))
        batch = jax.tree.map(lambda *parts: np.concatenate(parts)[order], *batches)
        return batch | {"example": numbers.astype(np.int32)}

    def statistics(self) -> dict[str, float]:
        """Returns the means of the statistics of the sources, weighted by their proportions."""
        statistics = [plan.statistics() for plan in self.plans]
        weights = np.array(self.store.block_counts) / sum(self.store.block_counts)
        means = {name: float(weights @ [part[name] for part in statistics])
                 for name in statistics[0] if name != "examples"}
        return {"examples": self.examples, **means}


def mixing_weights(
    weights: Sequence[float], sizes: Sequence[int], temperature: float, size_cap: int = 0
) -> list[float]:
    """Computes weights of sources in proportion to weight * min(size, size_cap)^(1 / temperature) (Raffel et al., 2019,
    section 3.5.2): a temperature of 1 samples sources by their size, larger ones sample small sources more often.

    Args:
      weights: the configured weight of each source.
      sizes: the examples or tokens of each source.
      temperature: 0 for `weights` alone.
      size_cap: the size as which a larger source counts; 0 for none.
    """
    power = 1 / temperature if temperature else 0.0
    capped = [min(size, size_cap or size) for size in sizes]
    largest = max(capped)  # only proportions matter: keeps the numbers small
    return [weight * (size / largest) ** power for weight, size in zip(weights, capped, strict=True)]


def block_counts(weights: Sequence[float]) -> tuple[int, ...]:
    """Counts the examples of each source in a block, for sources with these weights.

    The counts are exactly proportional if a block of at most BLOCK examples allows it: 3 and 1, or 0.7 and 0.3. Other
    weights are rounded to multiples of 1 / BLOCK; those with the largest remainders are rounded up (Hamilton's method).
    Raises UserError if a weight is rounded to 0."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * scale) for weight in exact]
    integers = [n // math.gcd(*integers) for n in integers]
    if sum(integers) <= BLOCK:
        return tuple(integers)
    quotas = [BLOCK * Fraction(n, sum(integers)) for n in integers]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(integers)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: BLOCK - sum(counts)]:
        counts[i] += 1
    if 0 in counts:
        source = counts.index(0)
        raise UserError(f"source {source} of the mixture has a fraction of {float(quotas[source] / BLOCK):.2g} of the "
                        f"examples; expected 1 in {BLOCK:,} or more: increase its weight, or remove it")
    return tuple(counts)
