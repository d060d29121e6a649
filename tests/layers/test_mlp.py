"""The feed-forward block and its activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import mlp
from lmrep.layers.mlp import ACTIVATIONS
from tests import reference

PARAMS = reference.random_params(mlp.specs(6, 10), seed=6)
X = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients(name):
    x = np.linspace(-12, 12, 961)
    f, computed = reference.ACTIVATIONS[name], jax.jit(ACTIVATIONS[name])
    np.testing.assert_allclose(computed(x.astype(np.float32)), f(x), atol=2e-6)
    gradient = jax.jit(jax.grad(lambda x: ACTIVATIONS[name](x).sum()))((x + 1e-3).astype(np.float32))  # beside a kink
    np.testing.assert_allclose(gradient, (f(x + 1e-3 + 1e-6) - f(x + 1e-3 - 1e-6)) / 2e-6, atol=1e-5)
    assert jax.eval_shape(computed, jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype == jnp.bfloat16


def test_gelu_keeps_small_values_in_bfloat16():
    x = jnp.linspace(-3, 3, 97, dtype=jnp.bfloat16)
    exact = reference.ACTIVATIONS["gelu"](np.asarray(x, np.float64))
    np.testing.assert_allclose(np.asarray(ACTIVATIONS["gelu"](x), np.float64), exact, rtol=2**-8)


def test_the_two_gelus_differ_where_they_should():
    x = jnp.linspace(-4, 4, 801)
    gap = np.abs(ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_tanh"](x)).max()
    assert 4e-4 < gap < 5e-4  # the tanh form's known largest error, 4.7e-4


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_is_two_dense_layers_with_an_activation_between(name):
    p = reference.float64(PARAMS)
    expected = reference.linear(p["out"], reference.ACTIVATIONS[name](reference.linear(p["in"], X)))
    np.testing.assert_allclose(mlp.apply(PARAMS, X, name), expected, atol=1e-5)


def test_dropout_acts_between_the_layers():
    params = PARAMS | {"out": {"kernel": np.eye(10, 6, dtype=np.float32), "bias": np.zeros(6, np.float32)}}
    plain, dropped = map(np.asarray, jax.jit(lambda params, key: [
        mlp.apply(params, X, "relu", rate=0.5, key=each) for each in (None, key)])(params, jax.random.key(0)))
    dropped_out = dropped == 0
    np.testing.assert_allclose(dropped, np.where(dropped_out, 0, 2 * plain), rtol=1e-6)
    assert 0 < (dropped_out & (plain > 0)).sum() < (plain > 0).sum()
