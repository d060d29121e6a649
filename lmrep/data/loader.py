"""From a plan to batches: which examples a step shows, gathered ahead of it by threads.

Nothing here has a state that a checkpoint would have to hold. Row r of step i is row g = i * batch_size + r of the
run, and g alone says which example that is, in O(1): a run that resumes at step i asks for step i.
"""

import contextlib
import math
from collections.abc import Callable, Iterator

import grain
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data.formats.base import Batch, Plan

ROUNDS = 8


def example_numbers(examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
    """The examples that rows of a run show. Every epoch shows each example once, in an order of its own.

    A Feistel network on pairs (high, low) of digits to base `side`, as in format-preserving encryption (Black and
    Rogaway 2002): a bijection of [0, side^2) that is computed for one number at a time and stored nowhere. Numbers
    that leave [0, examples) go through it again until they return. Grain's shuffle does the same, but one index a
    call, only below 2^32, and at 15 ms an index where there are few examples.

    Args:
      examples: how many there are, n.
      seed: not negative.
      rows: int64, any shape: rows of the run counted from its first; row g is in epoch g // n.

    Returns:
      int64 of that shape, in [0, n).
    """
    epochs, places = np.divmod(rows, examples)
    numbers = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        numbers[here] = _permute(places[here], examples, [seed, int(epoch)])
    return numbers


def _permute(places: np.ndarray, n: int, entropy: list[int]) -> np.ndarray:
    keys = np.random.SeedSequence(entropy).generate_state(ROUNDS, np.uint64)
    side = max(8, math.isqrt(n - 1) + 1)  # side^2 just above n, so that few leave; below 8 the orders are not fair
    numbers = places.copy()
    outside = np.ones(places.shape, bool)
    while outside.any():
        high, low = np.divmod(numbers[outside], side)
        for key in keys:
            high, low = low, (high + _hash(low, key) % side) % side
        numbers[outside] = high * side + low
        outside = numbers >= n
    return numbers


def _hash(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """SplitMix64 (Steele et al. 2014) of x + key; int64, not negative."""
    x = x.astype(np.uint64) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def batches(
    plan: Plan,
    *,
    batch_size: int,
    rows: np.ndarray,
    seed: int,
    first_step: int,
    last_step: int,
    threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """The batches of steps first_step, ..., last_step - 1, in order.

    Args:
      batch_size: rows of the whole batch, over all hosts.
      rows: int[b], those that this host's devices hold, in [0, batch_size); the batches have them alone, in this order.
      seed: of the order.
      threads, prefetch: how many batches are gathered at a time, and how many may wait. Threads end with the iterator.

    Raises:
      UserError: the plan has fewer examples than a batch has rows.
      RunFault: while iterating, an id outside of the vocabulary.
    """
    if plan.examples < batch_size:
        raise UserError(f"the data make {plan.examples} examples of length {plan.length}; expected at least one batch "
                        f"of {batch_size}: give more text, or lower batch_size or length")
    rows = np.asarray(rows, np.int64)

    def batch(step: int) -> Batch:
        return gather(plan, example_numbers(plan.examples, seed, step * batch_size + rows))

    return _prefetched(batch, first_step, last_step, threads, prefetch)


def evaluation_batches(
    plan: Plan,
    *,
    batch_size: int,
    rows: np.ndarray,
    limit: int | None = None,
    threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """Each of the first `limit` examples once, in order. Rows after the last are empty: example -1, all padding.

    Other arguments and errors as in `batches`; a plan smaller than a batch will do.
    """
    count = plan.examples if limit is None else min(limit, plan.examples)
    rows = np.asarray(rows, np.int64)

    def batch(step: int) -> Batch:
        numbers = step * batch_size + rows
        return gather(plan, np.where(numbers < count, numbers, -1))

    return _prefetched(batch, 0, -(-count // batch_size), threads, prefetch)


def gather(plan: Plan, numbers: np.ndarray) -> Batch:
    """`plan.gather`, its ids checked: on a device a lookup would clamp them or wrap them round, without an error."""
    batch = plan.gather(numbers)
    wrong = ((batch["tokens"] < 0) | (batch["tokens"] >= plan.store.vocabulary.size)).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        tokens = batch["tokens"][row]
        raise RunFault(f"example {numbers[row]} of the plan has ids from {tokens.min()} to {tokens.max()}; expected 0 "
                       f"to {plan.store.vocabulary.size - 1}: the token store was made with another tokenizer or is "
                       "damaged, delete it and it is built anew")
    return batch


def _prefetched(batch: Callable[[int], Batch], first: int, last: int, threads: int, prefetch: int) -> Iterator[Batch]:
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    with contextlib.closing(iter(grain.MapDataset.range(first, last).map(batch).to_iter_dataset(options))) as iterator:
        yield from iterator
