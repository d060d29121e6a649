"""Dropout: what it does to values, and how random its masks are.

Masks are held against independent draws at p < 1e-4, with fixed seeds;
`test_wrong_masks_are_detected` shows what would fail.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.sharding import batch_sharding, make_mesh
from lmrep.layers import dropout
from tests.chance import REJECT, fits, independent, least, rates

SHAPE = (64, 64, 256)
RATE = 0.1
KEY = jax.random.key(1)
mask = jax.jit(lambda key: dropout.apply(key, jnp.ones(SHAPE), RATE) > 0)  # True: kept


def quality(kept, rate=RATE) -> float:
    """p-value that the elements of bool[a, b, c] are kept independently with probability 1 - rate."""
    n, p_values = kept.size, []
    for axes in [(0, 1, 2), (1, 2), (0, 2), (0, 1), (2,), (0,)]:  # all, planes, lines
        kept_count = kept.sum(axes)
        p_values.append(rates(kept_count, n // kept_count.size, 1 - rate))
    flat = kept.ravel()
    strides = (1, 2, 3, 7, 64, kept.shape[2], 2 * kept.shape[2], kept.shape[1] * kept.shape[2], n // 2)
    p_values += [independent(flat[:-stride], flat[stride:]) for stride in strides]
    words = np.bincount(np.packbits(flat.reshape(-1, 8), axis=1).ravel(), minlength=256)  # eight neighbours
    ones = np.array([bin(word).count("1") for word in range(256)])
    p_values.append(fits(words[ones > 4], (1 - rate) ** ones[ones > 4] * rate ** (8 - ones[ones > 4])))
    return least(p_values)


def test_scales_what_it_keeps_and_zeroes_the_rest():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 64)), jnp.float32)
    y = np.asarray(dropout.apply(KEY, x, 0.25))
    kept = y != 0
    np.testing.assert_allclose(y[kept], np.asarray(x)[kept] / 0.75, rtol=1e-6)
    assert 0 < kept.mean() < 1
    assert dropout.apply(KEY, x.astype(jnp.bfloat16), 0.25).dtype == jnp.bfloat16


def test_is_the_identity_without_key_or_rate():
    x = jnp.ones((3, 4))
    assert dropout.apply(None, x, 0.5) is x
    assert dropout.apply(KEY, x, 0.0) is x


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.003])
def test_keeps_the_mean(rate):
    """The sum of n elements x/(1-r) with probability 1-r has mean n and variance n r/(1-r)."""
    y = np.asarray(jax.jit(partial(dropout.apply, rate=rate))(KEY, jnp.ones(SHAPE)), np.float64)
    assert abs(y.sum() - y.size) < 3.9 * np.sqrt(y.size * rate / (1 - rate))  # two-sided p = 1e-4
    assert rates((y > 0).sum(), y.size, 1 - rate) > REJECT


@pytest.mark.parametrize("seed", [1, 2, 2**31 + 5])
def test_elements_are_independent(seed):
    assert quality(np.asarray(mask(jax.random.key(seed)))) > REJECT


def test_keys_are_independent():
    """Keys as programs make them: seeds in a row, and those split and folded from one."""
    keys = [*map(jax.random.key, range(4)), *jax.random.split(jax.random.key(5), 3),
            *(jax.random.fold_in(KEY, i) for i in range(3))]
    masks = [np.asarray(mask(key)) for key in keys]
    assert least(independent(a, b) for a, b in itertools.combinations(masks, 2)) > REJECT
    # Nor is one mask another one shifted.
    shifts = (1, 2, 64, 256, 4096)
    assert least(independent(a.ravel()[s:], b.ravel()[:-s]) for s in shifts
                 for a, b in itertools.pairwise(masks)) > REJECT


@pytest.mark.slow
def test_wrong_masks_are_detected():
    draws = np.random.default_rng(0).random(SHAPE)
    good = draws >= RATE
    assert quality(good) > REJECT
    assert quality(draws >= 26 / 256) < REJECT  # the rate rounded to eight bits
    assert quality(np.broadcast_to(good[:1], SHAPE)) < REJECT  # one mask for all examples
    assert quality(np.concatenate([good[:32], good[:32]])) < REJECT  # the second half repeats the first
    assert quality(np.repeat(good[..., ::2], 2, axis=-1)) < REJECT  # one draw for two elements
    assert quality(np.sort(good, axis=1)) < REJECT  # the right number, but in order
    assert independent(good, np.where(draws > 0.98, ~good, good)) < REJECT


def test_same_key_same_mask_and_the_backward_pass_uses_it():
    x, drop = np.full((32, 32), 3.0, np.float32), partial(dropout.apply, KEY, rate=0.25)
    y, gradient = map(np.asarray, jax.jit(lambda x: (drop(x), jax.vjp(drop, x)[1](jnp.ones_like(x))[0]))(x))
    np.testing.assert_array_equal(y, jax.jit(drop)(x))
    np.testing.assert_allclose(gradient, np.where(y > 0, 1 / 0.75, 0), rtol=1e-6)


@pytest.mark.parametrize("mesh_shape", [(2, 2, 2)])
def test_the_mask_does_not_depend_on_the_layout(mesh_shape):
    mesh = make_mesh(*mesh_shape)
    apply = partial(dropout.apply, rate=RATE)
    x = jnp.ones((16, 8, 32))
    sharded = jax.jit(apply)(KEY, jax.device_put(x, batch_sharding(mesh)))
    assert len(sharded.sharding.device_set) == 8
    np.testing.assert_array_equal(sharded, jax.jit(apply)(KEY, x))
