"""From a plan to batches: which examples a step shows, gathered ahead of it by threads.

Nothing here has a state that a checkpoint would have to hold. Row r of step i is row g = i * batch_size + r of the
run, and g alone says which example that is, in O(1): a run that resumes at step i asks for step i.
"""

import contextlib
from collections.abc import Callable, Iterator

import grain
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data.formats.base import Batch, Plan
from lmrep.data.order import continuing_numbers, example_numbers

__all__ = ["batches", "evaluation_batches", "example_numbers", "gather"]


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
        found = gather(plan, plan.numbers(step * batch_size + rows, batch_size, seed))
        return _reset(found, plan.rows, batch_size) if plan.continues else found

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
    """Each of the first `limit` examples once: in order, or row by row where the plan continues. Rows after the last
    are empty: example -1, all padding.

    Other arguments and errors as in `batches`; a plan smaller than a batch will do.
    """
    count = plan.once if limit is None else min(limit, plan.once)
    rows = np.asarray(rows, np.int64)

    def batch(step: int) -> Batch:
        numbers = step * batch_size + rows
        if plan.continues:
            return _reset(gather(plan, continuing_numbers(count, 1, batch_size, numbers)), count, batch_size)
        shown = numbers < count
        return gather(plan, np.where(shown, plan.evaluation_order(np.where(shown, numbers, 0)), -1))

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


def _reset(batch: Batch, examples: int, batch_size: int) -> Batch:
    """The batch with `reset` also where a row begins its part of a walk over the examples."""
    steps, number = -(-examples // batch_size), batch["example"]
    begins = (number >= 0) & (number % examples % steps == 0)
    return batch | {"reset": np.maximum(batch["reset"], begins.astype(np.int32))}


def _prefetched(batch: Callable[[int], Batch], first: int, last: int, threads: int, prefetch: int) -> Iterator[Batch]:
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    with contextlib.closing(iter(grain.MapDataset.range(first, last).map(batch).to_iter_dataset(options))) as iterator:
        yield from iterator
