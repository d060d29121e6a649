"""Logits over the vocabulary, and cross-entropy."""

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


def nll_by_hand(logits, targets):
    return -np.take_along_axis(log_softmax(logits, axis=-1), targets[..., None], -1)[..., 0]


def transform(params, hidden):
    return lm_head.transform(params, hidden, activation="gelu", eps=1e-5)


def logits(params, table, hidden):
    return lm_head.logits(params, table, transform(params, hidden))


def cross_entropy_of(params, table, hidden):
    return lm_head.cross_entropy(params, table, transform(params, hidden), jnp.asarray(TARGETS))


@pytest.mark.parametrize("t", [0, 1, 5, 114, 512])
def test_no_chunk_is_padding_alone(t):
    for b in (1, 16, 128, 4096):
        chunks = lm_head._num_chunks(b, t, 32_128)
        size = lm_head.split_chunks(np.zeros((1, t)), chunks).shape[2]
        assert 1 <= chunks <= lm_head.MAX_CHUNKS and (chunks * size - t < max(1, size))


def test_parameters_are_the_transform_the_norm_and_one_bias_per_token():
    assert P.count(SPECS) == D * E + E + 2 * E + V


def test_logits_equal_their_definition():
    y = jax.jit(logits)(PARAMS, TABLE, HIDDEN)
    np.testing.assert_allclose(y, by_hand(*reference.float64((PARAMS, TABLE, HIDDEN))), atol=1e-4)
    bfloat16 = jax.jit(logits)(PARAMS, TABLE, jnp.asarray(HIDDEN, jnp.bfloat16))
    assert y.dtype == bfloat16.dtype == jnp.float32
    np.testing.assert_allclose(bfloat16, y, atol=0.25)


def test_cross_entropy_of_the_target_and_whether_it_has_the_largest_logit():
    nll, correct = jax.jit(cross_entropy_of)(PARAMS, TABLE, HIDDEN)
    expected = by_hand(*reference.float64((PARAMS, TABLE, HIDDEN)))
    np.testing.assert_allclose(nll, nll_by_hand(expected, TARGETS), rtol=1e-5)
    np.testing.assert_array_equal(correct, expected.argmax(-1) == TARGETS)
    best = expected.argmax(-1)
    _, correct = jax.jit(lambda best: lm_head.cross_entropy(PARAMS, TABLE, transform(PARAMS, HIDDEN), best))(best)
    assert correct.all()
    assert (nll.dtype, nll.shape, correct.dtype, correct.shape) == (jnp.float32, (2, 3), jnp.bool_, (2, 3))


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_cross_entropy_of_logits_of_any_size(shift):
    params = PARAMS | {"bias": PARAMS["bias"] + np.float32(shift)}
    nll, _ = jax.jit(cross_entropy_of)(params, TABLE, HIDDEN)
    expected = nll_by_hand(by_hand(*reference.float64((params, TABLE, HIDDEN))), TARGETS)
    np.testing.assert_allclose(nll, expected, atol=1e-3)  # float32 logits of a thousand are that coarse
    far = params | {"bias": np.where(np.arange(V) == 1, 1e4, PARAMS["bias"]).astype(np.float32)}
    nll, _ = jax.jit(cross_entropy_of)(far, TABLE, HIDDEN)
    np.testing.assert_allclose(nll, 1e4, rtol=0.01)


@pytest.mark.parametrize("chunk_logits", [1, lm_head.CHUNK_LOGITS])
@pytest.mark.parametrize("bias", [True, False])
def test_log_probabilities_are_the_negative_cross_entropy(monkeypatch, chunk_logits, bias):
    monkeypatch.setattr(lm_head, "CHUNK_LOGITS", chunk_logits)
    params = PARAMS if bias else PARAMS | {"bias": np.zeros_like(PARAMS["bias"])}
    head = params if bias else {}
    found = jax.jit(lm_head.log_probabilities)(head, TABLE, transform(PARAMS, HIDDEN), jnp.asarray(TARGETS))
    expected = nll_by_hand(by_hand(*reference.float64((params, TABLE, HIDDEN))), TARGETS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, -expected, rtol=1e-5)


@pytest.mark.parametrize("form", ["cross_entropy", "logits"])
def test_gradients_match_differences_of_the_closed_form(form):
    def loss(params, table, hidden):
        if form == "cross_entropy":
            return (cross_entropy_of(params, table, hidden)[0] * WEIGHTS).sum()
        return (cross_entropy(logits(params, table, hidden), jnp.asarray(TARGETS)) * WEIGHTS).sum()

    arguments = (PARAMS, TABLE, HIDDEN)
    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arguments)
    point = reference.float64(arguments)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        direction = jax.tree.map(lambda x: rng.normal(size=x.shape), point)  # noqa: B023

        def along(h):
            y = by_hand(*jax.tree.map(lambda a, b: a + h * b, point, direction))  # noqa: B023
            return (nll_by_hand(y, TARGETS) * WEIGHTS).sum()

        products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
        assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-4)


def test_bfloat16_gradients_stay_close_where_one_token_is_a_frequent_target():
    """A sum of a thousand terms that was kept in bfloat16 would stop growing at some two hundred."""
    n = 1024
    x = jnp.asarray(np.abs(RNG.normal(size=(1, n, E))) + 0.5, jnp.bfloat16)
    targets = jnp.where(jnp.arange(n) % 8 == 0, 3, 5)[None]
    table, bias = jnp.asarray(TABLE), {"bias": jnp.zeros(V)}

    def gradient(x):
        return jax.jit(jax.grad(lambda table: lm_head.cross_entropy(bias, table, x, targets)[0].sum()))(table)

    bfloat16, float32 = gradient(x), gradient(x.astype(jnp.float32))
    assert bfloat16.dtype == jnp.float32
    for token in range(V):
        assert np.linalg.norm(bfloat16[token] - float32[token]) < 0.02 * np.linalg.norm(float32[token]) + 0.1


def test_bfloat16_gradients_of_all_positions_are_close():
    """A single chunk, whose gradient of the table XLA's CPU backend once transposed inside a product."""
    x, table = RNG.normal(size=(2, 64, 128)).astype(np.float32), RNG.normal(size=(512, 128)).astype(np.float32)
    targets, weights = RNG.integers(0, 512, (2, 64)), np.full((2, 64), 1 / 128, np.float32)
    gradient = jax.jit(jax.grad(
        lambda table, x: lm_head.chunked_cross_entropy(table, x, targets, weights)[0], argnums=(0, 1)))
    for low, full in zip(gradient(table, jnp.asarray(x, jnp.bfloat16)), gradient(table, x), strict=True):
        assert np.linalg.norm(low.astype(jnp.float32) - full) < 0.05 * np.linalg.norm(full)


def test_argmax_is_the_first_largest():
    y = np.array([[1, 3, 3, 2], [-np.inf, -np.inf, 0, -1], [5, 4, 5, 5], [-3, -2, -1, 0]], np.float32)
    np.testing.assert_array_equal(lm_head._argmax(jnp.asarray(y)), y.argmax(-1))
