"""Attention against a loop over examples, heads and positions; and attention masks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import attention, dropout, linear
from lmrep.layers.attention import AttentionMask
from tests import reference

B, T, D, HEADS = 2, 7, 12, 3
RNG = np.random.default_rng(0)
PARAMS = reference.random_params(attention.specs(D), seed=8, stddev=0.5)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 2, 0, 0]])
MASK = RNG.random((B, T, T)) < 0.7
WEIGHTS = RNG.normal(size=(B, T, D)).astype(np.float32)


@jax.jit
def attend(params, x, mask):
    """(output, probabilities, gradient by params and x of the output's product with WEIGHTS)."""
    def f(params, x):
        y, probabilities = attention.apply(params, x, attention.dense(mask), HEADS)
        return (y * WEIGHTS).sum(), (y, probabilities)

    grads, (y, probabilities) = jax.grad(f, argnums=(0, 1), has_aux=True)(params, x)
    return y, probabilities, grads


def definition(segments, causal=False, further_mask=None):
    """AttentionMask.to_bool, by its definition."""
    mask = np.zeros((B, T, T), bool)
    for b in range(B):
        for t in range(T):
            for s in range(T):
                mask[b, t, s] = (segments[b, t] == segments[b, s] and (s <= t or not causal)
                                    and (further_mask is None or further_mask[b, t, s]))
    return mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
def test_attention_mask(causal, mask):
    attention_mask = AttentionMask(jnp.asarray(SEGMENTS), causal, None if mask is None else jnp.asarray(mask))
    np.testing.assert_array_equal(attention_mask.to_bool(), definition(SEGMENTS, causal, mask))


@pytest.mark.parametrize("mask", [
    np.ones((B, T, T), bool), definition(SEGMENTS), definition(SEGMENTS, causal=True), MASK | np.eye(T, dtype=bool),
], ids=["all", "segments", "causal", "mask"])
def test_equals_the_loop(mask):
    y, probabilities, grads = attend(PARAMS, X, mask)
    p, x = reference.float64((PARAMS, X))
    expected, expected_probabilities = reference.attention(p, x, mask, HEADS)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(probabilities, expected_probabilities, atol=1e-6)
    assert (np.asarray(probabilities)[~np.broadcast_to(mask[:, None], probabilities.shape)] == 0).all()  # exactly 0

    direction = jax.tree.map(lambda x: RNG.normal(size=x.shape), (p, x))

    def along(h):
        p_h, x_h = jax.tree.map(lambda a, b: a + h * b, (p, x), direction)
        return (reference.attention(p_h, x_h, mask, HEADS)[0] * WEIGHTS).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)


def test_norm_of_queries_and_keys():
    """They are divided by the root of the mean of their squares, and scaled: factors of their kernels change nothing,
    and the logits of one head are products of vectors of length sqrt(k), over sqrt(k)."""
    params = reference.random_params(attention.specs(D, HEADS, bias=False, query_key_norm=True), seed=8, stddev=0.5)
    factors = {"query": 3.0, "key": 0.2}
    other = params | {name: params[name] | {"kernel": params[name]["kernel"] * by} for name, by in factors.items()}
    expected, found = (attention.apply(p, X, attention.dense(MASK), HEADS) for p in (params, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), found, expected)
    k = D // HEADS
    query, key = (X @ params[name]["kernel"][:, :k] for name in ("query", "key"))
    query, key = (x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6) * params[name]["norm"]["scale"]
                  for name, x in (("query", query), ("key", key)))
    logits = np.where(MASK, query @ key.swapaxes(1, 2) / np.sqrt(k), -1e9)
    np.testing.assert_allclose(expected[1][:, 0], jax.nn.softmax(logits), rtol=0, atol=1e-5)


def test_a_position_that_attends_to_nothing_is_finite_and_does_not_affect_others():
    mask = np.ones((B, T, T), bool)
    empty_row = mask.copy()
    empty_row[0, 2] = False
    (y, probabilities, grads), (expected, _, _) = attend(PARAMS, X, empty_row), attend(PARAMS, X, mask)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, probabilities, grads)))
    others = np.ones((B, T), bool)
    others[0, 2] = False
    np.testing.assert_array_equal(np.asarray(y)[others], np.asarray(expected)[others])


def test_large_logits_do_not_overflow():
    y, probabilities, grads = attend(jax.tree.map(lambda p: 100 * p, PARAMS), X, definition(SEGMENTS))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, grads)))
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)


def test_dropout_acts_on_the_probabilities():
    """Each position attends to itself alone, with value 1, through the identity: the output is the mask."""
    identity = {"kernel": np.eye(D, dtype=np.float32), "bias": np.zeros(D, np.float32)}
    ones = {"kernel": np.zeros((D, D), np.float32), "bias": np.ones(D, np.float32)}
    params, alone = PARAMS | {"value": ones, "output": identity}, np.broadcast_to(np.eye(T, dtype=bool), (B, T, T))
    y, probabilities = jax.jit(lambda params, key: attention.apply(
        params, X, attention.dense(alone), HEADS, rate=0.5, key=key))(params, jax.random.key(1))
    heads = np.asarray(y).reshape(B, T, HEADS, D // HEADS)
    assert {0.0, 2.0} == set(np.unique(heads))
    assert (heads == heads[..., :1]).all()  # one draw per head and pair of positions
    np.testing.assert_allclose(np.diagonal(probabilities, axis1=2, axis2=3), 1, atol=1e-6)  # reported as before dropout


def test_bfloat16_in_and_out():
    mask = jnp.asarray(definition(SEGMENTS))
    y, probabilities = attention.apply(PARAMS, jnp.asarray(X, jnp.bfloat16), attention.dense(mask), HEADS)
    expected, _ = reference.attention(*reference.float64((PARAMS, X)), definition(SEGMENTS), HEADS)
    assert y.dtype == probabilities.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), expected, atol=0.15)


@pytest.mark.parametrize("cap", [0.0, 0.8])
def test_gradients_under_dropout_and_of_the_weights(cap):
    mask, key = jnp.asarray(definition(SEGMENTS, causal=True)), jax.random.key(3)
    mask = mask.at[0, 2].set(False)  # attends to nothing, and its logits have no gradient
    probability_weights = RNG.normal(size=(B, HEADS, T, T)).astype(np.float32)

    def ours(params, x):
        y, probabilities = attention.apply(params, x, attention.dense(mask, cap=cap), HEADS, rate=0.3, key=key)
        return (y * WEIGHTS).sum() + (probabilities * probability_weights).sum()

    def plain(params, x):  # left to JAX's own derivative
        query, keys, values = (linear.apply(params[name], x).reshape(B, T, HEADS, -1)
                               for name in ("query", "key", "value"))
        logits = jnp.einsum("bthk,bshk->bhts", query, keys) / np.sqrt(D / HEADS)
        logits = cap * jnp.tanh(logits / cap) if cap else logits
        probabilities = jax.nn.softmax(jnp.where(mask[:, None], logits, attention.MASKED_LOGIT))
        mixed = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, probabilities, 0.3), values)
        output = linear.apply(params["output"], mixed.reshape(B, T, D))
        return (output * WEIGHTS).sum() + (probabilities * probability_weights).sum()

    computed, expected = (jax.jit(jax.grad(f, argnums=(0, 1)))(PARAMS, X) for f in (ours, plain))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), computed, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backward_pass_keeps_one_array_of_the_weights_size(dtype):
    def f(params, x, key):
        return attention.apply(params, x, attention.dense(jnp.ones((B, T, T), bool)), HEADS, rate=0.1, key=key)[0]

    arguments = PARAMS, jnp.asarray(X, dtype), jax.random.key(0)
    pullback = jax.eval_shape(lambda params, x, key: jax.vjp(partial(f, key=key), params, x)[1], *arguments)
    residuals = jax.tree.leaves(pullback)
    assert [(x.shape, x.dtype) for x in residuals if x.size >= B * HEADS * T * T] == [((B, HEADS, T, T), dtype)]


def test_rounded_weights_give_no_gradient_where_all_values_are_equal():
    """All values are equal, so nothing depends on the weights; rounded, those of a query do not sum to 1."""
    x = jnp.asarray(RNG.normal(size=(B, T, HEADS, 4)), jnp.bfloat16)
    values = jnp.full_like(x, 3)

    def mixed(query, keys):
        cache = attention.KVCache(keys, values)
        return attention.dense(jnp.ones((B, T, T), bool))(query, cache)[0].astype(jnp.float32).sum()

    for gradient in jax.grad(mixed, argnums=(0, 1))(x, x):
        np.testing.assert_allclose(gradient.astype(np.float32), 0, atol=1e-5)
