"""Scores over the vocabulary, and cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.layers import vocabulary
from tests import reference

D, E, V = 10, 6, 23
RNG = np.random.default_rng(0)
SPECS = vocabulary.specs(D, E, V)
PARAMS = reference.random_params(SPECS, seed=9)
TABLE = RNG.normal(size=(V, E)).astype(np.float32)
HIDDEN = RNG.normal(size=(2, 7, D)).astype(np.float32)
POSITIONS = np.array([[6, 0, 3], [2, 2, 5]])
TARGETS = RNG.integers(0, V, (2, 3))


def by_hand(params, table, hidden):
    x = np.stack([row[places] for row, places in zip(hidden, POSITIONS, strict=True)])
    x = reference.layer_norm(params["norm"], reference.ACTIVATIONS["gelu"](reference.linear(params["transform"], x)),
                             1e-5)
    return x @ table.T + params["bias"]


def scores(params, table, hidden):
    return vocabulary.scores(params, table, hidden, jnp.asarray(POSITIONS), activation="gelu", eps=1e-5)


def test_counts_the_transform_the_norm_and_one_bias_a_word():
    assert P.count(SPECS) == D * E + E + 2 * E + V


def test_scores_are_those_of_the_chosen_positions():
    y = scores(PARAMS, TABLE, HIDDEN)
    np.testing.assert_allclose(y, by_hand(*reference.float64((PARAMS, TABLE, HIDDEN))), atol=1e-4)
    assert y.dtype == jnp.float32
    low = scores(PARAMS, TABLE, jnp.asarray(HIDDEN, jnp.bfloat16))
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, y, atol=0.25)


def test_cross_entropy_is_minus_the_log_probability():
    y = RNG.normal(size=(2, 3, V)).astype(np.float32)
    expected = -np.take_along_axis(log_softmax(y.astype(np.float64), axis=-1), TARGETS[..., None], -1)[..., 0]
    for shift, atol in ((0, 1e-5), (1e3, 1e-3), (-1e3, 1e-3)):  # far from 0, float32 scores are that coarse
        nats = vocabulary.cross_entropy(jnp.asarray(y) + shift, jnp.asarray(TARGETS))
        np.testing.assert_allclose(nats, expected, atol=atol)
    extreme = vocabulary.cross_entropy(jnp.array([[0.0, 1e4]]), jnp.array([0]))
    assert extreme.tolist() == [1e4]


def test_gradients_match_differences_of_the_closed_form():
    def loss(params, table, hidden):
        return vocabulary.cross_entropy(scores(params, table, hidden), jnp.asarray(TARGETS)).sum()

    given = (PARAMS, TABLE, HIDDEN)
    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*given)
    point = reference.float64(given)
    direction = jax.tree.map(lambda x: RNG.normal(size=x.shape), point)

    def along(h):
        y = log_softmax(by_hand(*jax.tree.map(lambda a, b: a + h * b, point, direction)), axis=-1)
        return -np.take_along_axis(y, TARGETS[..., None], -1).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-4)
