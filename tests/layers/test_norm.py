"""Layer normalisation against its closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import norm
from tests import reference

D = 24
PARAMS = reference.random_params(norm.specs(D), seed=1)
X = np.random.default_rng(2).normal(3, 0.5, (2, 5, D)).astype(np.float32)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])  # with the largest, its place in the formula shows
def test_closed_form(eps):
    expected = reference.layer_norm(reference.float64(PARAMS), X.astype(np.float64), eps)
    np.testing.assert_allclose(norm.apply(PARAMS, X, eps), expected, atol=1e-5)


def by_hand(kind, params, x, eps):
    x = x - x.mean(-1, keepdims=True) if kind.startswith("layer") else x
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * params["scale"] + params.get("bias", 0)


@pytest.mark.parametrize("kind", norm.NORMS)
def test_each_kind_and_its_gradients_are_those_of_its_closed_form(kind):
    params, rng = reference.random_params(norm.specs(D, kind), seed=1), np.random.default_rng(5)
    assert ("bias" in params) == (kind == "layer")
    point = reference.float64((params, X))
    direction, weights = jax.tree.map(lambda x: rng.normal(size=x.shape), point), rng.normal(size=X.shape)
    np.testing.assert_allclose(norm.apply(params, X, 1e-5, kind), by_hand(kind, *point, 1e-5), atol=1e-5)
    grads = jax.grad(lambda p, x: (norm.apply(p, x, 1e-5, kind) * weights).sum(), argnums=(0, 1))(
        params, jnp.asarray(X))

    def along(h):
        return (by_hand(kind, *jax.tree.map(lambda a, b: a + h * b, point, direction), 1e-5) * weights).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    derivative = sum(jax.tree.leaves(products))
    assert derivative == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-4)


def test_starts_as_plain_standardisation():
    y = norm.apply({"scale": jnp.ones(D), "bias": jnp.zeros(D)}, jnp.asarray(X), 1e-12)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(-1), 1, atol=1e-5)


def test_a_large_mean_costs_no_accuracy():
    x = X + np.float32(1000)  # a variance taken as E[x^2] - E[x]^2 in float32 would be off by a tenth
    expected = reference.layer_norm(reference.float64(PARAMS), x.astype(np.float64), 1e-12)
    np.testing.assert_allclose(norm.apply(PARAMS, x, 1e-12), expected, atol=5e-4)


def test_bfloat16_loses_only_the_rounding_of_its_output():
    x = jnp.asarray(X, jnp.bfloat16)
    y = norm.apply(PARAMS, x, 1e-12)
    assert y.dtype == jnp.bfloat16
    expected = reference.layer_norm(reference.float64(PARAMS), np.asarray(x, np.float64), 1e-12)
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=2**-8, atol=1e-6)


def test_gradients_match_differences_of_the_closed_form():
    weights = np.random.default_rng(3).normal(size=X.shape)
    grads = jax.grad(lambda p, x: (norm.apply(p, x, 1e-5) * weights).sum(), argnums=(0, 1))(PARAMS, jnp.asarray(X))
    rng = np.random.default_rng(4)
    point = reference.float64((PARAMS, X))
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), point)

    def along(h):
        p, x = jax.tree.map(lambda a, b: a + h * b, point, direction)
        return (reference.layer_norm(p, x, 1e-5) * weights).sum()

    derivative = sum((np.asarray(g, np.float64) * v).sum()
                for g, v in zip(jax.tree.leaves(grads), jax.tree.leaves(direction), strict=True))
    assert derivative == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backward_pass_keeps_its_input_and_two_numbers_per_position(dtype):
    x = jnp.asarray(X, dtype)
    residuals = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(lambda x: norm.apply(PARAMS, x, 1e-5), x)[1], x))
    assert [(each.shape, each.dtype) for each in residuals if each.size >= x.size] == [(x.shape, dtype)]
    assert sum(each.size for each in residuals) == x.size + 2 * x.size // D + 2 * D
