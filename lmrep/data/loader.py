"""From a plan to batches: which examples a step shows, gathered in advance by threads.

The loader has no state that a checkpoint would have to save. Index r of the batch of step i is position
i * batch_size + r of the run, and the position alone determines the example, in O(1): a run resumes at step i by asking
for step i.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial

import grain
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data.formats.base import Batch
from lmrep.data.formats.plans import Plan
from lmrep.data.formats.sentence_stream import SentenceStreamPlan
from lmrep.data.formats.stream_pair import StreamPairPlan
from lmrep.data.mixture import Mixture
from lmrep.data.records.examples import Examples

AnyPlan = Plan | SentenceStreamPlan | StreamPairPlan | Mixture | Examples
BLOCK = 16  # steps whose examples are found together: finding one takes the time of an array operation, not of examples


def batches(
    plan: AnyPlan, *, batch_size: int, indices: np.ndarray, seed: int, first_step: int, last_step: int,
    threads: int = 2, prefetch: int = 4, multiple: int = 1,
) -> Iterator[Batch]:
    """The batches of steps first_step, ..., last_step - 1, in order.

    Args:
      plan: the examples.
      batch_size: examples of the global batch, over all hosts.
      indices: int[b], the examples of the global batch that this host's devices hold, in [0, batch_size). The batches
        have only these, in this order.
      seed: of the order of the examples.
      first_step: counted from the start of the stage.
      last_step: the step after the last one.
      threads: batches that are gathered at a time. The threads end with the iterator.
      prefetch: batches that are kept ready.
      multiple: divides `batch_size`. Batches of labelled examples with fewer sequences (`Examples.batch_tokens`) have a
        multiple of it, filled with empty ones, and `indices` are those of as large a part of each.

    Raises:
      UserError: the plan has fewer examples than a batch.
      RunFault: while iterating, a token id is outside of the vocabulary.
    """
    if plan.examples < batch_size and not isinstance(plan, Examples):  # which fill batches with empty sequences
        raise UserError(f"the data make {plan.examples} examples of length {plan.length}; expected at least one batch "
                        f"of {batch_size}: give more text, or lower batch_size or length")
    indices = np.asarray(indices, np.int64)
    limited = partial(_of_smaller_batch, plan, batch_size, indices, multiple) if getattr(
        plan, "batch_tokens", 0) else None
    return _prefetched(plan, lambda step: plan.numbers(step * batch_size + np.arange(batch_size), batch_size, seed),
                       indices, first_step, last_step, threads, prefetch, limited)


def _of_smaller_batch(
    plan: Examples, batch_size: int, indices: np.ndarray, multiple: int, length: int | tuple[int, int]
) -> np.ndarray:
    """`indices` in a batch that has as many sequences as its length allows. A shard of the batch is some of `multiple`
    equal parts; the host has the same parts of the smaller batch."""
    size = batch_size // multiple
    rows = -(-plan.batch_rows(length, batch_size) // multiple)
    return (np.unique(indices // size)[:, None] * rows + np.arange(rows)).ravel()


def evaluation_batches(
    plan: AnyPlan, *, batch_size: int, indices: np.ndarray, limit: int | None = None, threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """Each of the first `limit` examples once: in order, or, if the plan is contiguous, each continuing the one at its
    index of the previous batch. Batches are filled with empty examples: example -1, all padding.

    Other arguments and errors as in `batches`; the plan may have fewer examples than a batch.
    """
    count = plan.evaluation_examples if limit is None else min(limit, plan.evaluation_examples)
    indices = np.asarray(indices, np.int64)
    return _prefetched(
        plan, lambda step: plan.evaluation_numbers(step * batch_size + np.arange(batch_size), batch_size, count),
        indices, 0, -(-count // batch_size), threads, prefetch)


def gather(plan: AnyPlan, numbers: np.ndarray, length: int = 0) -> Batch:
    """`plan.gather` with checked ids: on a device, an embedding lookup clamps or wraps them without an error."""
    batch = plan.gather(numbers, length)
    size = plan.vocabulary.size
    names = ("tokens", "backward_tokens", "source_tokens")
    ids = np.concatenate([batch[name].reshape(len(numbers), -1) for name in names if name in batch], axis=1)
    for name in ("following", "backward_following"):
        if name in batch:
            ids = np.column_stack([ids, np.where(batch[name] == -1, 0, batch[name])])
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        wrong = ((ids < 0) | (ids >= size)).any(axis=1)
        index = int(np.argmax(wrong))
        raise RunFault(f"example {numbers[index]} of the plan has ids from {ids[index].min()} to {ids[index].max()}; "
                       f"expected 0 to {size - 1}: the token store was made with another tokenizer or is damaged; "
                       "delete it, and it is built again")
    return batch


def _prefetched(
    plan: AnyPlan, numbers: Callable[[np.ndarray], np.ndarray], indices: np.ndarray, first: int, last: int,
    threads: int, prefetch: int, indices_of: Callable[[int | tuple[int, int]], np.ndarray] | None = None,
) -> Iterator[Batch]:
    """The batches of some steps, with the examples at `indices` of the global batch, or at `indices_of` its length.
    `numbers` gives those of several steps: int64[n, 1] -> int64[n, b]."""
    @functools.lru_cache(maxsize=4)
    def block(number: int) -> np.ndarray:
        return numbers(number * BLOCK + np.arange(BLOCK)[:, None])

    def numbers_of(step: int) -> np.ndarray:
        return block(step // BLOCK)[step % BLOCK]

    def batch(step: int) -> Batch:
        everywhere = numbers_of(step)
        length = plan.batch_length(everywhere)  # all hosts agree on it
        shown = everywhere[indices_of(length) if indices_of else indices]
        gathered = gather(plan, shown, length)
        if plan.contiguous:
            previous = numbers_of(step - 1)[indices] if step else np.full_like(shown, -1)
            interrupted = (shown >= 0) & ~plan.continues(previous, shown)
            for name in ("reset", "backward_reset"):
                if name in gathered:
                    gathered[name] = np.maximum(gathered[name], interrupted.astype(np.int32))
        return gathered

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    with contextlib.closing(iter(grain.MapDataset.range(first, last).map(batch).to_iter_dataset(options))) as iterator:
        yield from iterator
