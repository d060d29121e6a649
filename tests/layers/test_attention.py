"""Attention against a loop over rows, heads and positions; and what a position may see."""

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
def attend(params, x, allowed):
    """(output, probabilities, gradient by params and x of the output's product with WEIGHTS)."""
    def f(params, x):
        y, maps = attention.apply(params, x, allowed, HEADS)
        return (y * WEIGHTS).sum(), (y, maps)

    grads, (y, maps) = jax.grad(f, argnums=(0, 1), has_aux=True)(params, x)
    return y, maps, grads


def visible(segments, causal=False, mask=None):
    """AttentionMask.to_bool, by its definition."""
    allowed = np.zeros((B, T, T), bool)
    for b in range(B):
        for t in range(T):
            for s in range(T):
                allowed[b, t, s] = (segments[b, t] == segments[b, s] and (s <= t or not causal)
                                    and (mask is None or mask[b, t, s]))
    return allowed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
def test_visibility(causal, mask):
    given = AttentionMask(jnp.asarray(SEGMENTS), causal, None if mask is None else jnp.asarray(mask))
    np.testing.assert_array_equal(given.to_bool(), visible(SEGMENTS, causal, mask))


@pytest.mark.parametrize("allowed", [
    np.ones((B, T, T), bool), visible(SEGMENTS), visible(SEGMENTS, causal=True), MASK | np.eye(T, dtype=bool),
], ids=["all", "segments", "causal", "mask"])
def test_equals_the_loop(allowed):
    y, maps, grads = attend(PARAMS, X, allowed)
    p, x = reference.float64((PARAMS, X))
    expected, expected_maps = reference.attention(p, x, allowed, HEADS)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(maps, expected_maps, atol=1e-6)
    assert (np.asarray(maps)[~np.broadcast_to(allowed[:, None], maps.shape)] == 0).all()  # hidden is hidden, exactly

    direction = jax.tree.map(lambda x: RNG.normal(size=x.shape), (p, x))

    def along(h):
        p_h, x_h = jax.tree.map(lambda a, b: a + h * b, (p, x), direction)
        return (reference.attention(p_h, x_h, allowed, HEADS)[0] * WEIGHTS).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)


def test_a_position_that_sees_nothing_is_finite_and_disturbs_no_other():
    allowed = np.ones((B, T, T), bool)
    blind = allowed.copy()
    blind[0, 2] = False
    (y, maps, grads), (seen, _, _) = attend(PARAMS, X, blind), attend(PARAMS, X, allowed)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, maps, grads)))
    others = np.ones((B, T), bool)
    others[0, 2] = False
    np.testing.assert_array_equal(np.asarray(y)[others], np.asarray(seen)[others])


def test_large_scores_do_not_overflow():
    y, maps, grads = attend(jax.tree.map(lambda p: 100 * p, PARAMS), X, visible(SEGMENTS))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, grads)))
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)


def test_dropout_acts_on_the_probabilities():
    """Each position sees itself alone, with value 1 and the identity behind it: what comes out is the mask."""
    identity = {"kernel": jnp.eye(D), "bias": jnp.zeros(D)}
    ones = {"kernel": jnp.zeros((D, D)), "bias": jnp.ones(D)}
    params = PARAMS | {"value": ones, "output": identity}
    alone = jnp.broadcast_to(jnp.eye(T, dtype=bool), (B, T, T))
    y, maps = attention.apply(params, X, alone, HEADS, rate=0.5, key=jax.random.key(1))
    heads = np.asarray(y).reshape(B, T, HEADS, D // HEADS)
    assert {0.0, 2.0} == set(np.unique(heads))
    assert (heads == heads[..., :1]).all()  # one draw a head and a pair of positions
    np.testing.assert_allclose(np.diagonal(maps, axis1=2, axis2=3), 1, atol=1e-6)  # reported as before dropout


def test_bfloat16_in_and_out():
    y, maps = attention.apply(PARAMS, jnp.asarray(X, jnp.bfloat16), jnp.asarray(visible(SEGMENTS)), HEADS)
    expected, _ = reference.attention(*reference.float64((PARAMS, X)), visible(SEGMENTS), HEADS)
    assert y.dtype == maps.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), expected, atol=0.15)


def test_gradients_under_dropout_and_of_the_weights():
    allowed, key = jnp.asarray(visible(SEGMENTS, causal=True)), jax.random.key(3)
    allowed = allowed.at[0, 2].set(False)  # sees nothing, and its scores move nothing
    to_maps = RNG.normal(size=(B, HEADS, T, T)).astype(np.float32)

    def ours(params, x):
        y, maps = attention.apply(params, x, allowed, HEADS, rate=0.3, key=key)
        return (y * WEIGHTS).sum() + (maps * to_maps).sum()

    def plain(params, x):  # left to JAX's own derivative
        query, keys, values = (linear.apply(params[name], x).reshape(B, T, HEADS, -1)
                               for name in ("query", "key", "value"))
        scores = jnp.einsum("bthk,bshk->bhts", query, keys) / np.sqrt(D / HEADS)
        maps = jax.nn.softmax(jnp.where(allowed[:, None], scores, attention.MASKED_LOGIT))
        mixed = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, maps, 0.3), values)
        return (linear.apply(params["output"], mixed.reshape(B, T, D)) * WEIGHTS).sum() + (maps * to_maps).sum()

    found, expected = (jax.jit(jax.grad(f, argnums=(0, 1)))(PARAMS, X) for f in (ours, plain))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backward_pass_keeps_one_array_of_the_weights_size(dtype):
    def f(params, x, key):
        return attention.apply(params, x, jnp.ones((B, T, T), bool), HEADS, rate=0.1, key=key)[0]

    given = PARAMS, jnp.asarray(X, dtype), jax.random.key(0)
    kept = jax.tree.leaves(jax.eval_shape(lambda params, x, key: jax.vjp(partial(f, key=key), params, x)[1], *given))
    assert [(x.shape, x.dtype) for x in kept if x.size >= B * HEADS * T * T] == [((B, HEADS, T, T), dtype)]


def test_what_is_common_to_the_weights_of_a_row_moves_no_bfloat16_score():
    """All values are equal, so nothing depends on the weights; rounded, those of a row do not sum to 1."""
    x = jnp.asarray(RNG.normal(size=(B, T, HEADS, 4)), jnp.bfloat16)
    values = jnp.full_like(x, 3)

    def mixed(query, keys):
        past = attention.KVCache(keys, values)
        return attention._attention(query, past, jnp.ones((B, T, T), bool))[0].astype(jnp.float32).sum()

    for gradient in jax.grad(mixed, argnums=(0, 1))(x, x):
        np.testing.assert_allclose(gradient.astype(np.float32), 0, atol=1e-5)
