"""Biases of attention logits by bucket of distance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import relative_bias
from lmrep.layers.relative_bias import Buckets
from tests.cases import slow_after


def bucket(n, number, max_distance, both_sides):
    """As the paper says, in exact arithmetic: a bucket's first distance is at least exact * ratio ** (i / far)."""
    start = 0
    if both_sides:
        number //= 2
        start, n = (number if n < 0 else 0), abs(n)
    n = max(n, 0)
    exact = number // 2
    if n < exact:
        return start + n
    far = number - exact
    i = max(i for i in range(far + 200) if n**far * exact**i >= exact**far * max_distance**i)
    return start + min(exact + i, number - 1)


@pytest.mark.parametrize("buckets", [Buckets(), Buckets(both_sides=False), Buckets(8, 20), Buckets(6, 50, False)])
def test_buckets_equal_exact_arithmetic(buckets):
    distances = np.arange(-300, 301)
    expected = [bucket(n, *buckets) for n in distances.tolist()]
    assert buckets.of(distances).tolist() == expected
    unused = {buckets.number // 2} if buckets.both_sides else set()  # no key on the right has distance 0
    assert set(expected) == set(range(buckets.number)) - unused


def test_published_buckets():
    """Raffel et al. (2019): half of the buckets of a side are of one distance, and 128 is in the last."""
    encoder, decoder = Buckets(), Buckets(both_sides=False)
    assert encoder.of(np.array([0, 7, 8, 11, 12, 127, 128, -1, -7, -8, -128])).tolist() == [
        0, 7, 8, 8, 9, 15, 15, 17, 23, 24, 31]
    assert decoder.of(np.array([-5, 0, 15, 16, 18, 19, 112, 113, 128, 9999])).tolist() == [
        0, 0, 15, 16, 16, 17, 30, 31, 31, 31]


@pytest.mark.parametrize(("t", "s", "both_sides"), slow_after(2, [(7, 7, True), (3, 8, False), (1, 5, False)]))
def test_every_pair_has_the_bias_of_its_bucket(t, s, both_sides):
    buckets = Buckets(8, 6, both_sides)
    table = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    expected = np.array([[table[bucket(i - j, *buckets)] for j in range(s)] for i in range(t)]).transpose(2, 0, 1)
    run = jax.jit(lambda table: relative_bias.apply({"table": table}, t, s, buckets))
    np.testing.assert_array_equal(run(table), expected)
    if t <= s:
        for start in range(s - t + 1):
            expected = [[table[bucket(start + i - j, *buckets)] for j in range(s)] for i in range(t)]
            found = relative_bias.apply_at({"table": table}, jnp.int32(start), t, s, buckets)
            np.testing.assert_array_equal(found, np.array(expected).transpose(2, 0, 1))
    weights = np.random.default_rng(1).normal(size=(3, t, s)).astype(np.float32)
    gradient = jax.grad(lambda table: (run(table) * weights).sum())(table)
    expected = np.zeros_like(table)
    for i in range(t):
        for j in range(s):
            expected[bucket(i - j, *buckets)] += weights[:, i, j]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
