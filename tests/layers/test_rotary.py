"""Rotary positions."""

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.layers.rotary import rotary

RNG = np.random.default_rng(0)
B, T, H, K = 2, 5, 3, 8
X = RNG.normal(size=(B, T, H, K)).astype(np.float32)
POSITIONS = RNG.integers(0, 1000, (B, T)).astype(np.int32)


def test_planes_are_multiplied_by_complex_numbers():
    """As in GPT-NeoX: entry i and entry i + width / 2 are a plane; the rest stays."""
    width, base = 6, 50.0
    planes = X[..., :3] + 1j * X[..., 3:6]
    turned = planes * np.exp(1j * POSITIONS[..., None, None] * base ** (-2 * np.arange(3) / width))
    expected = np.concatenate([turned.real, turned.imag, X[..., 6:]], -1)
    np.testing.assert_allclose(rotary(jnp.asarray(POSITIONS), width, base)(X, None), expected, atol=2e-4)


def test_products_depend_on_the_difference_of_positions():
    query, keys = jax.random.normal(jax.random.key(0), (2, 1, T, H, K))

    def products(start):
        rotate = rotary(jnp.arange(start, start + T)[None], K)
        return jnp.einsum("bthk,bshk->bhts", rotate(query, None), rotate(keys, None))

    np.testing.assert_allclose(products(0), products(37), atol=1e-4)


def test_chosen_positions():
    at, rotate = RNG.integers(0, T, (B, 4)), rotary(jnp.asarray(POSITIONS), K)
    chosen = np.take_along_axis(X, at[..., None, None], axis=1)
    expected = np.take_along_axis(np.asarray(rotate(X, None)), at[..., None, None], axis=1)
    np.testing.assert_allclose(rotate(chosen, jnp.asarray(at)), expected, atol=1e-6)
