"""Scores over the vocabulary, and cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.layers import lm_head
from tests import reference

D, E, V = 10, 6, 23
RNG = np.random.default_rng(0)
SPECS = lm_head.specs(D, E, V)
PARAMS = reference.random_params(SPECS, seed=9)
TABLE = RNG.normal(size=(V, E)).astype(np.float32)
HIDDEN = RNG.normal(size=(2, 3, D)).astype(np.float32)
TARGETS = np.array([[4, 4, 19], [0, 4, 22]])  # one of them three times
WEIGHTS = RNG.uniform(0.1, 1, (2, 3))


def by_hand(params, table, hidden):
    x = reference.ACTIVATIONS["gelu"](reference.linear(params["transform"], hidden))
    x = reference.layer_norm(params["norm"], x, 1e-5)
    return x @ table.T + params["bias"]


def nats_by_hand(scores, targets):
    return -np.take_along_axis(log_softmax(scores, axis=-1), targets[..., None], -1)[..., 0]


def transform(params, hidden):
    return lm_head.transform(params, hidden, activation="gelu", eps=1e-5)


def scores(params, table, hidden):
    return lm_head.logits(params, table, transform(params, hidden))


def asked(params, table, hidden):
    return lm_head.cross_entropy(params, table, transform(params, hidden), jnp.asarray(TARGETS))


def test_counts_the_transform_the_norm_and_one_bias_a_word():
    assert P.count(SPECS) == D * E + E + 2 * E + V


def test_scores_equal_their_definition():
    y = jax.jit(scores)(PARAMS, TABLE, HIDDEN)
    np.testing.assert_allclose(y, by_hand(*reference.float64((PARAMS, TABLE, HIDDEN))), atol=1e-4)
    low = jax.jit(scores)(PARAMS, TABLE, jnp.asarray(HIDDEN, jnp.bfloat16))
    assert y.dtype == low.dtype == jnp.float32
    np.testing.assert_allclose(low, y, atol=0.25)


def test_asked_charges_for_the_target_and_says_whether_it_is_the_likeliest():
    nats, hits = jax.jit(asked)(PARAMS, TABLE, HIDDEN)
    expected = by_hand(*reference.float64((PARAMS, TABLE, HIDDEN)))
    np.testing.assert_allclose(nats, nats_by_hand(expected, TARGETS), rtol=1e-5)
    np.testing.assert_array_equal(hits, expected.argmax(-1) == TARGETS)
    best = jnp.asarray(expected.argmax(-1))
    _, hits = lm_head.cross_entropy(PARAMS, TABLE, transform(PARAMS, HIDDEN), best)
    assert hits.all()
    assert (nats.dtype, nats.shape, hits.dtype, hits.shape) == (jnp.float32, (2, 3), jnp.bool_, (2, 3))


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_scores_of_any_size_are_charged_for(shift):
    params = PARAMS | {"bias": PARAMS["bias"] + np.float32(shift)}
    nats, _ = jax.jit(asked)(params, TABLE, HIDDEN)
    expected = nats_by_hand(by_hand(*reference.float64((params, TABLE, HIDDEN))), TARGETS)
    np.testing.assert_allclose(nats, expected, atol=1e-3)  # float32 scores of a thousand are that coarse
    far = params | {"bias": np.where(np.arange(V) == 1, 1e4, PARAMS["bias"]).astype(np.float32)}
    nats, _ = jax.jit(asked)(far, TABLE, HIDDEN)
    np.testing.assert_allclose(nats, 1e4, rtol=0.01)


@pytest.mark.parametrize("form", ["asked", "scores"])
def test_gradients_match_differences_of_the_closed_form(form):
    def loss(params, table, hidden):
        if form == "asked":
            return (asked(params, table, hidden)[0] * WEIGHTS).sum()
        return (cross_entropy(scores(params, table, hidden), jnp.asarray(TARGETS)) * WEIGHTS).sum()

    given = (PARAMS, TABLE, HIDDEN)
    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*given)
    point = reference.float64(given)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        direction = jax.tree.map(lambda x: rng.normal(size=x.shape), point)  # noqa: B023

        def along(h):
            y = by_hand(*jax.tree.map(lambda a, b: a + h * b, point, direction))  # noqa: B023
            return (nats_by_hand(y, TARGETS) * WEIGHTS).sum()

        products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
        assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-4)


def test_bfloat16_gradients_stay_close_where_one_word_is_asked_for_often():
    """A sum of a thousand terms that was kept in bfloat16 would stop growing at some two hundred."""
    n = 1024
    x = jnp.asarray(np.abs(RNG.normal(size=(1, n, E))) + 0.5, jnp.bfloat16)
    targets = jnp.where(jnp.arange(n) % 8 == 0, 3, 5)[None]
    table, bias = jnp.asarray(TABLE), {"bias": jnp.zeros(V)}

    def gradient(x):
        return jax.jit(jax.grad(lambda table: lm_head.cross_entropy(bias, table, x, targets)[0].sum()))(table)

    low, high = gradient(x), gradient(x.astype(jnp.float32))
    assert low.dtype == jnp.float32
    for word in range(V):
        assert np.linalg.norm(low[word] - high[word]) < 0.02 * np.linalg.norm(high[word]) + 0.1


def test_the_likeliest_is_the_first_largest():
    y = np.array([[1, 3, 3, 2], [-np.inf, -np.inf, 0, -1], [5, 4, 5, 5], [-3, -2, -1, 0]], np.float32)
    np.testing.assert_array_equal(lm_head._argmax(jnp.asarray(y)), y.argmax(-1))
