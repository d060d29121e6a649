"""The biattentive classification network: each block against NumPy, what padding and other texts of a batch change
(nothing), and how a trained one predicts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.layers import batch_norm
from lmrep.objectives.base import Carry
from lmrep.tasks import bcn
from tests.reference import random_params
from tests.tasks.tiny import Tiny

C = bcn.Config(width=3, maxout=(5, 4), pieces=2, dropout=0.2)
D, T = 6, 7
PARAMS = random_params(bcn.specs(C, D), 0)
X = np.random.default_rng(1).normal(size=(3, T, D)).astype(np.float32)
# A pair of 3 and 2 tokens; a single text; two units in a sequence, a pair of 2 and 1 tokens and a single text.
TEXTS = bcn.Texts(
    np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 2, 2, 2, 0]], np.int32),
    np.array([[0, 0, 0, 1, 1, 0, 0], [0] * 7, [0, 0, 1, 0, 0, 0, 0]], bool),
    np.array([[1, 0], [1, 0], [1, 1]], bool))
represent = jax.jit(bcn.represent)


@functools.cache
def vectors():
    return np.asarray(represent(PARAMS, X, TEXTS))


def one(x, second):
    """The vectors of one text or pair by itself."""
    n = len(second)
    texts = bcn.Texts(np.ones((1, n), np.int32), np.array([second], bool), np.ones((1, 1), bool))
    return np.asarray(represent(PARAMS, x[None], texts))[0, 0]


def test_padding_and_other_texts_of_a_sequence_change_nothing():
    for i, j, tokens, second in ((1, 0, slice(0, 4), [0] * 4), (2, 0, slice(0, 3), [0, 0, 1]),
                                 (2, 1, slice(3, 6), [0] * 3)):
        np.testing.assert_allclose(vectors()[i, j], one(X[i, tokens], second), rtol=2e-5, atol=2e-6)
    assert not vectors()[:2, 1].any()  # there is no second unit


def test_a_single_text_is_compared_with_itself():
    """As a pair of two equal texts, each of which is read by itself."""
    x = X[1, :4]
    np.testing.assert_allclose(vectors()[1, 0], one(np.concatenate([x, x]), [0] * 4 + [1] * 4), rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_swapping_texts_swaps_their_vectors_where_both_sides_have_the_same_parameters():
    def same(tree):
        return {name: {side: sides["first"] for side in bcn.SIDES} if name in ("integrate", "pooling") else sides
                for name, sides in tree.items()}

    texts = bcn.Texts(jnp.ones((1, 5), jnp.int32), jnp.array([[0, 0, 0, 1, 1]], bool), jnp.ones((1, 1), bool))
    found = represent(same(PARAMS), X[:1, :5], texts)[0, 0]
    swapped = represent(same(PARAMS), jnp.roll(X[:1, :5], 2, 1), texts._replace(
        second=jnp.array([[0, 0, 1, 1, 1]], bool)))[0, 0]
    np.testing.assert_allclose(jnp.roll(swapped, len(swapped) // 2), found, rtol=2e-5, atol=2e-6)


def test_attention_and_pooling_are_their_formulas():
    h, other = np.asarray(X[0]), np.zeros((T, T), bool)
    other[:3, 3:5] = other[3:5, :3] = True
    found = np.asarray(jax.jit(bcn.attend)(X[:1], other[None]))[0]
    for i in range(T):
        weights = np.exp(h @ h[i]) * other[i]
        expected = weights @ h / weights.sum() if other[i].any() else np.zeros(D)
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-6)
    vector = np.random.default_rng(2).normal(size=D).astype(np.float32)
    y, mask = h[2:5], (np.arange(T) >= 2) & (np.arange(T) < 5)
    weights = np.exp(y @ vector)
    expected = [y.max(0), y.mean(0), y.min(0), weights @ y / weights.sum()]
    found = jax.jit(bcn.pool)({"vector": vector}, X[:1], mask[None, None])
    np.testing.assert_allclose(np.asarray(found)[0, 0], np.concatenate(expected), rtol=1e-4, atol=1e-6)


def test_maxout_layers_take_the_largest_of_their_pieces():
    y, _ = jax.jit(bcn.apply, static_argnums=1)(PARAMS, C, X, TEXTS, bcn.statistics(C))
    expected = vectors()
    for name, width in zip(("0", "1"), C.maxout, strict=True):
        layer = jax.tree.map(np.asarray, PARAMS["maxout"][name])
        z = expected @ layer["dense"]["kernel"] + layer["dense"]["bias"]
        z = z / np.sqrt(1 + batch_norm.EPSILON) * layer["norm"]["scale"] + layer["norm"]["bias"]
        expected = np.stack([z[..., C.pieces * i : C.pieces * (i + 1)].max(-1) for i in range(width)], -1)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_is_by_the_vectors_that_count():
    x, mask = np.random.default_rng(0).normal(2, 3, (4, 5)).astype(np.float32), np.array([1, 1, 0, 1], bool)
    params = {"scale": np.full(5, 2.0, np.float32), "bias": np.full(5, 0.5, np.float32)}
    apply = jax.jit(batch_norm.apply, static_argnames="training")
    y, after = apply(params, batch_norm.statistics(5), jnp.asarray(x), jnp.asarray(mask), training=True)
    real = x[mask]
    np.testing.assert_allclose(y[mask], 2 * (real - real.mean(0)) / np.sqrt(real.var(0) + 1e-5) + 0.5, rtol=1e-4,
                               atol=1e-5)
    np.testing.assert_allclose(after["mean"], 0.1 * real.mean(0), rtol=1e-5)
    np.testing.assert_allclose(after["variance"], 0.9 + 0.1 * real.var(0, ddof=1), rtol=1e-5)
    again, _ = apply(params, after, jnp.asarray(x), jnp.asarray(mask), training=False)
    np.testing.assert_allclose(again, 2 * (x - after["mean"]) / np.sqrt(after["variance"] + 1e-5) + 0.5, rtol=1e-4,
                               atol=1e-5)


@pytest.mark.slow
def test_gradients_are_finite_and_those_of_finite_differences():
    def loss(params, x):
        return jnp.square(bcn.apply(params, C, x, TEXTS, bcn.statistics(C))[0]).sum()

    loss, x = jax.jit(loss), jax.random.normal(jax.random.key(1), X.shape)
    gradient, at_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(PARAMS, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    direction = at_x / jnp.linalg.norm(at_x)
    difference = (loss(PARAMS, x + 5e-3 * direction) - loss(PARAMS, x - 5e-3 * direction)) / 1e-2
    np.testing.assert_allclose(jnp.linalg.norm(at_x), difference, rtol=2e-2)


RECORDS = [{"text": "cat dog", "text2": "bird", "label": "a"}, {"text": "fish", "text2": "tree cat dog", "label": "b"},
           {"text": "dog dog dog", "text2": "stone", "label": "a"}]
FIELDS = {"network": "bcn", "dense": False, "dropout": 0.0,
          "bcn": bcn.Config(width=3, maxout=(4,), pieces=2, dropout=0.0)}


@pytest.mark.slow
def test_training_moves_the_statistics_and_predictions_read_them():
    tiny = Tiny("classification", RECORDS, **FIELDS)
    examples, initial = tiny.examples(), tiny.objective.carry(1)
    batch = examples.gather(np.arange(3), examples.batch_length(np.arange(3)))
    prepared = tiny.objective.prepare(None, batch)
    _, (_, after) = jax.jit(tiny.objective.loss)(tiny.params, prepared, jax.random.key(0), initial)
    assert jax.tree.structure(after) == jax.tree.structure(initial)
    assert not np.allclose(after.shared["0"]["mean"], 0)
    found = [tiny.predict(tiny.params | {"shared": each.shared}, batch)["units"]["log_probabilities"]
             for each in (initial, after)]
    assert not np.allclose(*found)
    with pytest.raises(UserError, match="running statistics"):
        tiny.predict(tiny.params, batch)


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_batch():
    tiny = Tiny("classification", RECORDS, **FIELDS)
    tiny.params["shared"] = jax.tree.map(lambda x: x + 0.5, tiny.objective.carry(1).shared)
    each, together = (tiny.outputs(tiny.examples(), size)["log_probabilities"] for size in (1, 3))
    np.testing.assert_allclose(each, together, rtol=1e-5, atol=1e-6)


def test_other_networks_carry_nothing():
    assert Tiny("classification", RECORDS).objective.carry(1) == Carry()
