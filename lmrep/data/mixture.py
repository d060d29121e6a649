"""Corpora mixed in fixed proportions: Wikipedia and books, or many languages by temperature.

Rows of a run are dealt to the sources in blocks that repeat (`order.interleave`), so that after any number of rows
each source has had its share of them to within less than one row, and a row's number alone says which source shows
which of its examples there. Nothing is stored: a run goes on at any step, on any number of hosts. Each source is walked
in an order of its own, epoch by epoch, however many times the others have been.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import FIELDS, Batch, Plan
from lmrep.data.order import example_numbers, interleave
from lmrep.data.store.token_store import Store

BLOCK = 10_000  # rows of the longest block: shares are rounded to a part in so many


@dataclass(frozen=True, eq=False)
class Sources:
    """One split of each source: what `Store` is to a single corpus.

    Attributes:
      names: of the sources.
      stores: their stores.
      shares: rows of each in a block.
    """

    names: tuple[str, ...]
    stores: tuple[Store, ...]
    shares: tuple[int, ...]
    vocabulary: Vocabulary = field(repr=False)

    @property
    def split(self) -> str:
        """The split's name."""
        return self.stores[0].split

    @property
    def tokens(self) -> int:
        """Of all sources."""
        return sum(store.tokens for store in self.stores)

    @property
    def fingerprint(self) -> str:
        """Names the content: of every source's split, in their order and proportions."""
        facts = [[store.fingerprint for store in self.stores], self.shares]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Mixture:
    """A plan made of the plans of several sources; it offers what `formats.Plan` does.

    Examples are numbered through: those of the first source, then those of the second, and so on.

    Attributes:
      plans: of the sources, all of one format and length.
      store: their splits, and their shares.
    """

    plans: tuple[Plan, ...]
    store: Sources = field(repr=False)
    continues = False

    def __post_init__(self):
        if any(plan.continues for plan in self.plans):
            raise ValueError("rows of a mixture are of its sources in turn: none continues another")
        if self.examples > np.iinfo(FIELDS["example"].dtype).max:
            raise UserError(f"the mixture has {self.examples:,} examples; expected fewer than 2^31: lower duplicates")

    @functools.cached_property
    def _block(self) -> np.ndarray:
        """The source of each row of a block."""
        return interleave(self.store.shares)

    @functools.cached_property
    def _ranks(self) -> np.ndarray:
        """How many rows of the same source stand before a row in its block."""
        ranks = np.empty_like(self._block)
        for source in range(len(self.plans)):
            ranks[self._block == source] = np.arange((self._block == source).sum())
        return ranks

    @property
    def examples(self) -> int:
        """The number of examples of all sources, duplicates counted."""
        return sum(plan.examples for plan in self.plans)

    @property
    def length(self) -> int:
        """Tokens a row, padding included."""
        return self.plans[0].length

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the arrays of a batch."""
        return self.plans[0].fields

    @property
    def fingerprint(self) -> str:
        """Of the sources' plans and shares."""
        facts = [[plan.fingerprint for plan in self.plans], self.store.shares]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def once(self) -> int:
        """How many rows of an evaluation show no example twice: those up to where the first source ends."""
        shares, total = self.store.shares, sum(self.store.shares)
        last = []  # of each source, the number of the row at which it would start again
        for source, (plan, share) in enumerate(zip(self.plans, shares, strict=True)):
            block, rank = divmod(plan.examples, share)
            last.append(block * total + int(np.flatnonzero(self._block == source)[rank]))
        return min(last)

    def deal(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, how many rows of this source came before) of rows of a run: int64 like `rows`."""
        block, place = np.divmod(rows, len(self._block))
        source = self._block[place]
        return source, block * np.array(self.store.shares)[source] + self._ranks[place]

    def numbers(self, rows: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """As `Plan.numbers`; each source has an order of its own."""
        return self._numbers(rows, lambda source, index: example_numbers(
            self.plans[source].examples, _seed(seed, source), index))

    def evaluation_order(self, rows: np.ndarray) -> np.ndarray:
        """As `Plan.evaluation_order`, of rows below `once`."""
        return self._numbers(rows, lambda source, index: index)

    def _numbers(self, rows: np.ndarray, example: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
        sources, index = self.deal(rows)
        numbers = np.empty_like(index)
        for source, first in enumerate(self._firsts[:-1]):
            here = sources == source
            numbers[here] = first + example(source, index[here])
        return numbers

    @property
    def _firsts(self) -> np.ndarray:
        """The number of each source's first example, and the number of all."""
        return np.concatenate([[0], np.cumsum([plan.examples for plan in self.plans])])

    def gather(self, numbers: np.ndarray) -> Batch:
        """As `Plan.gather`."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and not -1 <= numbers.min() <= numbers.max() < self.examples:
            raise IndexError(f"examples {numbers.min()} to {numbers.max()} of a mixture that has {self.examples}")
        firsts = self._firsts
        sources = (np.searchsorted(firsts, numbers, side="right") - 1).clip(0)  # empty rows are the first source's
        places = [np.flatnonzero(sources == source) for source in range(len(self.plans))]
        parts = [plan.gather(np.where(numbers[place] >= 0, numbers[place] - first, -1))
                 for plan, place, first in zip(self.plans, places, firsts[:-1], strict=True)]
        back = np.argsort(np.concatenate(places))
        batch = {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
        return batch | {"example": numbers.astype(np.int32)}

    def statistics(self) -> dict[str, float]:
        """As `Plan.statistics`: the sources' means, weighed by their shares."""
        each, shares = [plan.statistics() for plan in self.plans], np.array(self.store.shares) / sum(self.store.shares)
        means = {name: float(shares @ [facts[name] for facts in each]) for name in each[0] if name != "examples"}
        return {"examples": self.examples, **means}


def _seed(seed: int, source: int) -> int:
    """The seed of a source's own order."""
    return int(np.random.SeedSequence([seed, source]).generate_state(1, np.uint64)[0])


def block_counts(weights: Sequence[float]) -> tuple[int, ...]:
    """How many rows each weight has in a block of at most BLOCK rows.

    Exactly in proportion where a block that short can be: 3 and 1, or 0.7 and 0.3. Other weights are rounded to parts
    of BLOCK, those with the largest remainders up (Hamilton's method).

    Raises:
      UserError: a weight is less than half a part.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    whole = [n // math.gcd(*whole) for n in whole]
    if sum(whole) <= BLOCK:
        return tuple(whole)
    quotas = [BLOCK * Fraction(n, sum(whole)) for n in whole]
    shares = [int(quota) for quota in quotas]
    largest = sorted(range(len(whole)), key=lambda i: (shares[i] - quotas[i], i))
    for i in largest[: BLOCK - sum(shares)]:
        shares[i] += 1
    if 0 in shares:
        raise UserError(f"source {shares.index(0)} of the mixture has {float(quotas[shares.index(0)] / BLOCK):.2g} of "
                        f"the rows; expected one in {BLOCK:,} or more: give it more weight, or leave it out")
    return tuple(shares)
