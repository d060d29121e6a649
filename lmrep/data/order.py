"""Which example is shown when: orders and draws that are computed for one number at a time and stored nowhere, so that
a run that goes on, on however many hosts, needs no memory of what it has seen."""

import heapq
import math
from collections.abc import Sequence

import numpy as np

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


def uniform(entropy: Sequence[int], index: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) for each int64 of `index`: the same for the same entropy and number, whatever the library."""
    (key,) = np.random.SeedSequence(list(entropy)).generate_state(1, np.uint64)
    return (_hash(_hash(index, key), key) >> 10) * 2.0**-53


def _hash(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """SplitMix64 (Steele et al. 2014) of x + key; int64, not negative."""
    x = x.astype(np.uint64) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def continuing_numbers(examples: int, duplicates: int, batch_size: int, rows: np.ndarray) -> np.ndarray:
    """The examples that rows of a run show where row r of a batch continues row r of the batch before.

    One walk over the examples is cut into `batch_size` parts of s = ceil(n / batch_size) examples; row r of the
    walk's step i shows example r s + i. Walk w shows the duplicate w mod `duplicates`.

    Args:
      examples: of one walk, n.
      rows: int64, rows of the run counted from its first.

    Returns:
      int64 of that shape; -1 where the last parts are short of examples.
    """
    steps = -(-examples // batch_size)
    step, row = np.divmod(rows, batch_size)
    walk, step = np.divmod(step, steps)
    number = row * steps + step
    return np.where(number < examples, walk % duplicates * examples + number, -1)


def interleave(shares: Sequence[int]) -> np.ndarray:
    """A block of N = sum(shares) rows in which source i has shares[i] rows, as evenly as whole rows can be.

    After any g rows of blocks in a row, each source has had its share g * shares[i] / N to within less than one row
    (Tijdeman 1980). The j-th row of a source must then stand in a window of the block; taking of the windows that
    are open the one that closes first meets all of them, where they can be met, as they can here (Steiner and Yeomans
    1993).

    Returns:
      int64[N], the source of each row.
    """
    total = sum(shares)
    windows = sorted((j * total // share, -(-(j + 1) * total // share), i)
                     for i, share in enumerate(shares) for j in range(share))
    block, opened, ready = [], [], 0
    for place in range(total):
        while ready < total and windows[ready][0] <= place:
            heapq.heappush(opened, windows[ready][1:])
            ready += 1
        block.append(heapq.heappop(opened)[1])
    return np.array(block, np.int64)
