"""Functions of words, computed once for each distinct word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import distinct, highway_cnn
from tests import reference

RNG = np.random.default_rng(0)
C, FILL = 30, 9


def words(n, kinds, longest=C):
    """n words of `kinds` distinct ones: characters 1 to 8, then FILL; the first is 0 throughout."""
    table = np.full((kinds, C), FILL, np.int32)
    for row in table:
        length = RNG.integers(1, longest + 1)
        row[:length] = RNG.integers(1, 9, length)
    table[0] = 0
    return table[np.concatenate([np.arange(kinds), RNG.integers(0, kinds, n - kinds)])[RNG.permutation(n)]]


@pytest.fixture
def chunks_of_8(monkeypatch):
    monkeypatch.setattr(distinct, "CHUNK", 8)
    monkeypatch.setattr(distinct, "SHORT", (4, 12))


def check_groups(given):
    found = jax.tree.map(np.asarray, jax.jit(distinct.find)(jnp.asarray(given)))
    np.testing.assert_array_equal(found.words[found.of_word], given)
    assert found.of_word.max() < found.count
    for word, length in zip(found.words, found.lengths, strict=True):
        assert (word[length:] == word[-1]).all() and (length == 0 or word[length - 1] != word[-1])
    assert (np.diff(found.lengths[: found.count]) >= 0).all()
    return found


def test_each_distinct_word_is_found_once():
    assert check_groups(words(100, 37)).count == 37
    assert check_groups(words(5, 5)).count == 5
    assert check_groups(np.ones((7, C), np.int32)).count == 1


def test_words_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(distinct, "FACTORS", np.zeros_like(distinct.FACTORS))
    assert check_groups(words(100, 37)).count >= 37


@pytest.mark.parametrize(("n", "kinds", "longest"), [
    (50, 21, C), pytest.param(40, 8, 6, marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_every_word_by_itself(n, kinds, longest, chunks_of_8):
    given = jnp.asarray(words(n, kinds, longest))
    specs = highway_cnn.specs(10, 3, (4, 5, 6), 1, 7)
    params = reference.random_params(specs)
    weights = jnp.asarray(RNG.normal(size=(n, 7)), jnp.float32)

    def plain(params, given):
        return highway_cnn.vectors(params, given, "float32", "relu")

    def loss(f):
        return jax.jit(jax.value_and_grad(lambda params: (f(params, given) * weights).sum()))(params)

    (value, gradients), (expected, expected_gradients) = loss(
        lambda params, given: distinct.apply(lambda p, x: plain(p, x), params, given, reach=3)), loss(plain)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), gradients, expected_gradients)


@pytest.mark.slow
def test_gradients_of_characters_that_are_read_thousands_of_times_are_right_in_bfloat16():
    """A sum of thousands of terms in bfloat16 stops growing at a few hundred."""
    params = reference.random_params(highway_cnn.specs(10, 3, (4, 5), 0, 7))
    given = np.full((200, C), 5, np.int32)
    given[:, :3] = np.stack(np.unravel_index(np.arange(200), (9, 9, 9)), 1)

    def gradients(dtype):
        def loss(params):
            return distinct.apply(lambda p, x: highway_cnn.vectors(p, x, dtype, "relu"), params, jnp.asarray(given),
                                  2).sum()

        return jax.jit(jax.grad(loss))(params)

    found, expected = gradients("bfloat16")["embedding"], gradients("float32")["embedding"]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[5], expected[5], rtol=0.02)


def test_a_word_that_is_read_again_is_not_computed_again(chunks_of_8):
    calls = []

    def f(params, given):
        jax.debug.callback(lambda x: calls.append(len(x)), given)
        return params * given[:, :1].astype(jnp.float32)

    given = jnp.asarray(np.repeat(words(5, 5), 20, axis=0))
    found = jax.jit(lambda p, x: distinct.apply(f, p, x, 1))(jnp.float32(2), given)
    jax.effects_barrier()
    assert calls == [8]
    np.testing.assert_array_equal(found, 2 * given[:, :1])
