"""ELMo's mix of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import scalar_mix

LAYERS = [jnp.asarray(np.random.default_rng(i).normal(i, 2, (2, 5, 3)), jnp.float32) for i in range(3)]


def test_it_begins_as_the_mean_of_the_layers():
    params = P.init(scalar_mix.specs(3), jax.random.key(0))
    np.testing.assert_allclose(scalar_mix.apply(params, LAYERS), sum(LAYERS) / 3, atol=1e-6)


def test_with_one_layer_on_it_is_that_layer():
    params = {"scores": jnp.array([0.0, 1000.0, 0.0]), "gamma": jnp.float32(1)}
    np.testing.assert_array_equal(scalar_mix.apply(params, LAYERS), LAYERS[1])
    np.testing.assert_array_equal(scalar_mix.apply(params | {"gamma": jnp.float32(2)}, LAYERS), 2 * LAYERS[1])


def test_the_norm_is_over_all_real_tokens_and_dimensions_together():
    mask = jnp.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], bool)
    params = {"scores": jnp.array([0.0, 0.0, 1000.0]), "gamma": jnp.float32(1)}
    found = np.asarray(scalar_mix.apply(params, LAYERS, mask, norm=True))
    real = np.asarray(LAYERS[2])[np.asarray(mask)]
    np.testing.assert_allclose(found[np.asarray(mask)], (real - real.mean()) / real.std(), atol=1e-5)
    padded = LAYERS[2].at[0, 4].set(1e6)
    np.testing.assert_allclose(scalar_mix.apply(params, [*LAYERS[:2], padded], mask, norm=True)[:, :2], found[:, :2],
                               atol=1e-5)


def test_the_penalty_is_on_the_scores_before_the_softmax():
    params = {"scores": jnp.array([1.0, 2.0, -3.0]), "gamma": jnp.float32(5)}
    assert scalar_mix.penalty(params, 0.1) == pytest.approx(1.4)
