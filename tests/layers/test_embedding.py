"""The sum of embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import embedding
from tests import reference

RNG = np.random.default_rng(0)
TOKENS, TYPES = RNG.integers(0, 11, (3, 5)), RNG.integers(0, 3, (3, 5))
POSITIONS = RNG.integers(0, 7, (3, 5))
PARAMS = reference.random_params(embedding.specs(11, 6, length=7, token_types=3), seed=7)


def apply(params, types=TYPES, **options):
    return embedding.apply(params, jnp.asarray(TOKENS), jnp.asarray(POSITIONS),
                           None if types is None else jnp.asarray(types), **options)


def test_tables_by_arguments():
    assert P.flatten(embedding.specs(11, 6)).keys() == {"token"}
    assert P.count(embedding.specs(11, 6)) == 66
    assert P.count(embedding.specs(11, 6, length=7, token_types=3)) == 66 + 42 + 18


def test_is_the_sum_of_the_looked_up_vectors():
    expected = PARAMS["token"][TOKENS] + PARAMS["token_type"][TYPES] + PARAMS["position"][POSITIONS]
    np.testing.assert_allclose(apply(PARAMS), expected, atol=1e-6)
    np.testing.assert_allclose(apply({"token": PARAMS["token"]}), PARAMS["token"][TOKENS], atol=1e-6)


def test_token_types_are_the_first_where_none_are_given():
    np.testing.assert_array_equal(apply(PARAMS, None), apply(PARAMS, np.zeros_like(TYPES)))


def test_sinusoids_stand_in_for_a_position_table():
    expected = PARAMS["token"][TOKENS] + reference.sinusoids(7, 6)[POSITIONS]
    np.testing.assert_allclose(apply({"token": PARAMS["token"]}, sinusoidal_length=7), expected, atol=1e-6)


@pytest.mark.parametrize(("name", "ids"), [("token", TOKENS), ("token_type", TYPES), ("position", POSITIONS)])
def test_gradients_add_up_over_equal_ids(name, ids):
    weights = RNG.normal(size=(3, 5, 6)).astype(np.float32)
    grads = jax.grad(lambda params: (apply(params) * weights).sum())(jax.tree.map(jnp.asarray, PARAMS))
    expected = np.zeros_like(PARAMS[name])
    np.add.at(expected, ids, weights)
    np.testing.assert_allclose(grads[name], expected, atol=1e-5)
