"""From a dataset to batches: which examples a step shows, gathered in advance by threads.

The loader has no state that a checkpoint would have to save. Index r of the batch of step i is position
i * batch_size + r of the dataset, and the position alone determines the example, in O(1): a run resumes at step i by
asking for step i.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

import grain
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data.dataset import Batch, Dataset

BLOCK = 16  # steps whose examples are computed together, which takes hardly longer than for one step


def batches(
    dataset: Dataset, *, batch_size: int, indices: np.ndarray, seed: int, first_step: int, last_step: int,
    begin: int = 0, threads: int = 2, prefetch: int = 4, multiple: int = 1,
) -> Iterator[Batch]:
    """Yields the batches of steps first_step, ..., last_step - 1, in order.

    Args:
      dataset: the examples.
      batch_size: examples of the global batch, over all hosts.
      indices: int[b], the examples of the global batch that this host's devices hold, in [0, batch_size). The batches
        have only these, in this order.
      seed: decides the order of the examples.
      first_step: counted from the start of the stage.
      last_step: the step after the last one.
      begin: batches of the dataset that come before the stage's first, since earlier stages showed them.
      threads: batches that are gathered at a time. The threads end with the iterator.
      prefetch: batches that are kept ready.
      multiple: a divisor of `batch_size`, the number of equal parts of a batch. A batch with fewer examples
        (`Dataset.batch_rows`) is filled with empty ones to a multiple of it, and this host gets the same parts of it.

    Raises:
      UserError: the dataset has fewer examples than a batch, and does not fill it.
      RunFault: while iterating, a token id is outside of the vocabulary.
    """
    if dataset.examples < batch_size and not dataset.fills:
        raise UserError(f"the data make {dataset.examples} examples of length {dataset.length}; expected at least one "
                        f"batch of {batch_size}: give more text, or lower batch_size or length")
    indices = np.asarray(indices, np.int64)

    def indices_of(length: int | tuple[int, int]) -> np.ndarray:
        rows = dataset.batch_rows(length, batch_size)
        if rows == batch_size:
            return indices
        part, rows = batch_size // multiple, -(-rows // multiple)
        # A shard of the batch is some of `multiple` equal parts; the host has the same parts of the smaller batch.
        return (np.unique(indices // part)[:, None] * rows + np.arange(rows)).ravel()

    return _prefetched(
        dataset, lambda step: dataset.numbers((begin + step) * batch_size + np.arange(batch_size), batch_size, seed),
        indices_of, first_step, last_step, threads, prefetch)


def evaluation_batches(
    dataset: Dataset, *, batch_size: int, indices: np.ndarray, limit: int | None = None, threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """Yields each of the first `limit` examples once: in order, or, if the dataset is contiguous, each continuing the
    example at its index of the previous batch. Batches are filled with empty examples: example -1, all padding.

    Other arguments and errors as in `batches`; the dataset may have fewer examples than a batch.
    """
    count = dataset.evaluation_examples if limit is None else min(limit, dataset.evaluation_examples)
    indices = np.asarray(indices, np.int64)
    return _prefetched(
        dataset, lambda step: dataset.evaluation_numbers(step * batch_size + np.arange(batch_size), batch_size, count),
        lambda length: indices, 0, -(-count // batch_size), threads, prefetch)


def gather(dataset: Dataset, numbers: np.ndarray, length: int = 0) -> Batch:
    """Gathers a batch and checks its ids: on a device, an embedding lookup clamps or wraps them without an error."""
    batch = dataset.gather(numbers, length)
    size = dataset.vocabulary.size
    texts = _texts(batch)
    ids = np.column_stack([
        *(text["tokens"].reshape(len(numbers), -1) for text in texts),
        *(np.where(text["following"] == -1, 0, text["following"]) for text in texts if "following" in text)])
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        wrong = ((ids < 0) | (ids >= size)).any(axis=1)
        index = int(np.argmax(wrong))
        raise RunFault(f"example {numbers[index]} of the plan has ids from {ids[index].min()} to {ids[index].max()}; "
                       f"expected 0 to {size - 1}: the token store was made with another tokenizer or is damaged; "
                       "delete it, and it is built again")
    return batch


def _texts(batch: Batch) -> list[Batch]:
    """Lists the fields of each text of a batch."""
    return [batch, *(batch[name] for name in ("source", "backward") if name in batch)]


def _prefetched(
    dataset: Dataset, numbers: Callable[[np.ndarray], np.ndarray],
    indices_of: Callable[[int | tuple[int, int]], np.ndarray], first: int, last: int, threads: int, prefetch: int,
) -> Iterator[Batch]:
    """Yields the batches of steps first, ..., last - 1. `numbers` returns the examples of several steps, int64[n, 1] ->
    int64[n, b]; `indices_of` returns this host's part of a global batch of a length."""
    @functools.lru_cache(maxsize=4)
    def block(number: int) -> np.ndarray:
        return numbers(number * BLOCK + np.arange(BLOCK)[:, None])

    def numbers_of(step: int) -> np.ndarray:
        return block(step // BLOCK)[step % BLOCK]

    def batch(step: int) -> Batch:
        global_numbers = numbers_of(step)
        length = dataset.batch_length(global_numbers)  # all hosts agree on it
        indices = indices_of(length)
        host_numbers = global_numbers[indices]
        gathered = gather(dataset, host_numbers, length)
        if dataset.contiguous:
            previous = numbers_of(step - 1)[indices] if step else np.full_like(host_numbers, -1)
            interrupted = (host_numbers >= 0) & ~dataset.continues(previous, host_numbers)
            for text in _texts(gathered):
                if "reset" in text:
                    text["reset"] = np.maximum(text["reset"], interrupted.astype(np.int32))
        return gathered

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    with contextlib.closing(iter(grain.MapDataset.range(first, last).map(batch).to_iter_dataset(options))) as iterator:
        yield from iterator
