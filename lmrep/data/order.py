"""The order of examples. Each number is computed by itself and nothing is stored, so that a run resumes at any step, on
any number of hosts, without a record of the examples it has shown."""

import functools
import heapq
import math
from collections.abc import Sequence

import numpy as np

ROUNDS = 8


def example_numbers(examples: int, seed: int, positions: np.ndarray) -> np.ndarray:
    """Computes the examples at positions of a dataset. Every epoch shows each example once, in its own random order.

    A Feistel network on pairs (high, low) of digits to base `side`, as in format-preserving encryption (Black and
    Rogaway 2002), is a bijection of [0, side^2). A number outside of [0, examples) is mapped again until it is inside.
    Grain's shuffle does the same, but for one index per call, only below 2^32, and at 15 ms per index for few examples.

    Args:
      examples: the number of examples, n.
      seed: of the order, not negative.
      positions: int64, any shape, of `Dataset.numbers`; position g is in epoch g // n.

    Returns:
      int64 of that shape, in [0, n).
    """
    epochs, indices = np.divmod(positions, examples)
    numbers = np.empty_like(indices)
    for epoch in np.unique(epochs):
        selected = epochs == epoch
        numbers[selected] = _permute(indices[selected], examples, [seed, int(epoch)])
    return numbers


def _permute(indices: np.ndarray, n: int, entropy: list[int]) -> np.ndarray:
    keys = np.random.SeedSequence(entropy).generate_state(ROUNDS, np.uint64)
    side = max(8, math.isqrt(n - 1) + 1)  # side^2 is little more than n; below 8, orders are not equally likely
    numbers = indices.copy()
    outside = np.ones(indices.shape, bool)
    while outside.any():
        high, low = np.divmod(numbers[outside], side)
        for key in keys:
            high, low = low, (high + _hash(low, key) % side) % side
        numbers[outside] = high * side + low
        outside = numbers >= n
    return numbers


def uniform(entropy: Sequence[int], index: np.ndarray) -> np.ndarray:
    """Draws a float64 in [0, 1) for each int64 of `index`; a draw depends on the entropy and its index alone."""
    (key,) = np.random.SeedSequence(list(entropy)).generate_state(1, np.uint64)
    return (_hash(_hash(index, key), key) >> 10) * 2.0**-53


def _hash(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """Computes SplitMix64 (Steele et al. 2014) of x + key; int64, not negative."""
    x = x.astype(np.uint64) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def contiguous_numbers(
    examples: int, repeats: int, batch_size: int, positions: np.ndarray, seed: int | None = None
) -> np.ndarray:
    """Computes the examples at some positions of a dataset in which example r of a batch continues example r of the
    previous batch.

    The corpus is split into `batch_size` chunks of consecutive examples whose sizes differ by at most one; index r of
    the batches shows chunk r. A walk over the corpus takes as many steps as the largest chunk has examples. In each
    walk, each chunk starts at its own random example and wraps around at its end, so that batches combine other texts
    in every walk, at the cost of one more interruption per chunk.

    Args:
      examples: the number of examples of a walk, n.
      repeats: walk w shows repetition w mod `repeats`, whose examples are numbered from (w mod repeats) n.
      batch_size: examples per batch.
      positions: int64, any shape, of `Dataset.numbers`.
      seed: of the random starts; None: every chunk starts at its first example.

    Returns:
      int64 of that shape; -1 at the last step of a walk for chunks that are shorter by one.
    """
    steps = -(-examples // batch_size)
    step, index = np.divmod(positions, batch_size)
    walk, step = np.divmod(step, steps)
    first = index * examples // batch_size
    size = (index + 1) * examples // batch_size - first
    start = np.zeros_like(size)
    for number in np.unique(walk) if seed is not None else ():
        selected = walk == number
        start[selected] = uniform((seed, int(number)), index[selected]) * size[selected]
    example = first + (start + step) % np.maximum(size, 1)
    return np.where(step < size, walk % repeats * examples + example, -1)


def interleave(counts: Sequence[int]) -> np.ndarray:
    """Makes a block of N = sum(counts) examples with counts[i] examples of source i, spread as evenly as possible.

    After any number g of examples of a sequence of such blocks, each source has had g * counts[i] / N examples to
    within less than one (Tijdeman 1980). This holds where the j-th example of each source is within a certain window of
    the block. Choosing, among the open windows, the one that closes first meets all of them if that is possible, which
    it is here (Steiner and Yeomans 1993).

    Returns:
      int64[N], the source of each example.
    """
    total = sum(counts)
    windows = sorted((j * total // count, -(-(j + 1) * total // count), i)
                     for i, count in enumerate(counts) for j in range(count))
    block, open_, next_ = [], [], 0
    for position in range(total):
        while next_ < total and windows[next_][0] <= position:
            heapq.heappush(open_, windows[next_][1:])
            next_ += 1
        block.append(heapq.heappop(open_)[1])
    return np.array(block, np.int64)


@functools.lru_cache(maxsize=8)
def ranked_block(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (the block of `interleave`, for each position the number of earlier positions with the same source), both
    int64[N]."""
    block = interleave(counts)
    ranks = np.empty_like(block)
    for source, count in enumerate(counts):
        ranks[block == source] = np.arange(count)
    return block, ranks


def assign(counts: tuple[int, ...], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assigns the positions of a dataset to sources, in blocks of `interleave` that repeat.

    Args:
      counts: examples of each source in a block.
      positions: int64, any shape, of `Dataset.numbers`.

    Returns:
      (source, number of earlier positions with the same source), int64 of that shape.
    """
    block, ranks = ranked_block(counts)
    blocks, position = np.divmod(positions, len(block))
    source = block[position]
    return source, blocks * np.array(counts)[source] + ranks[position]


def source_seed(seed: int, source: int) -> int:
    """Computes the seed of the order of one source in a run of `seed`."""
    return int(np.random.SeedSequence([seed, source]).generate_state(1, np.uint64)[0])
