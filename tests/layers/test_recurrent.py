"""Bidirectional LSTMs, attention pooling and character convolutions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import attention_pooling, char_cnn, recurrent
from tests.reference import random_params

X = np.random.default_rng(0).normal(size=(1, 7, 4)).astype(np.float32)

bidirectional = jax.jit(recurrent.bidirectional)


def test_both_directions_read_what_is_on_their_side():
    params = random_params(recurrent.bidirectional_specs(4, 3, 1))
    segments = jnp.ones((1, 7), jnp.int32)
    y = bidirectional(params, X, segments)
    changed = bidirectional(params, X + (np.arange(7) == 3)[:, None].astype(np.float32), segments)
    same = np.isclose(y, changed, atol=1e-7)[0]
    assert y.shape == (1, 7, 6)
    assert same[:3, :3].all() and not same[3:, :3].all(1).any()
    assert same[4:, 3:].all() and not same[:4, 3:].all(1).any()


def test_skipped_positions_change_nothing_and_segments_are_independent():
    params = random_params(recurrent.bidirectional_specs(4, 3, 2))
    segments = jnp.array([[0, 1, 0, 1, 2, 2, 0]])
    y = np.asarray(bidirectional(params, X, segments))
    for at in ([1, 3], [4, 5]):
        alone = bidirectional(params, X[:, np.array(at)], jnp.ones((1, 2), jnp.int32))
        np.testing.assert_allclose(y[:, at], alone, atol=1e-6)
    assert not y[0, [0, 2, 6]].any()


@pytest.mark.parametrize("all_states", [False, True])
@pytest.mark.parametrize(("cell", "clip"), [("lstm", 0.0), ("lstm", 0.4), ("rnn", 0.0)])
def test_the_gradient_equals_that_of_each_time_step_by_itself(cell, clip, all_states):
    """Of kernel, input and state, with padding and a segment that starts anew."""
    rng = np.random.default_rng(4)
    params = random_params(recurrent.specs(4, 3, recurrent.uniform(1.0), cell), seed=4)
    x, segments = rng.normal(size=(2, 7, 4)).astype(np.float32), jnp.array([[1, 1, 0, 2, 2, 0, 0], [1] * 7])
    real, starts = segments > 0, recurrent.segment_starts(segments)
    state = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in recurrent.STATES[cell]}
    weights = rng.normal(size=(2, 7, 3))

    def total(hidden, states):
        return (hidden * weights).sum() + sum((value**2).sum() for value in states.values())

    def ours(params, x, state):
        return total(*recurrent.apply(params["input"], params["recurrent"]["kernel"], x, state, cell=cell, real=real,
                                      starts=starts, all_states=all_states, clip_cell=clip))

    def expected(params, x, state):
        projected, outputs, states = x @ params["input"]["kernel"] + params["input"]["bias"], [], []
        for t in range(7):
            before = {name: jnp.where(starts[:, t, None], 0, value) for name, value in state.items()}
            gates = projected[:, t] + before["hidden"] @ params["recurrent"]["kernel"]
            after = recurrent.CELLS[cell](gates, before, clip)
            state = {name: jnp.where(real[:, t, None], after[name], value) for name, value in state.items()}
            outputs.append(state["hidden"])
            states.append(state)
        every = {name: jnp.stack([each[name] for each in states], 1) for name in state}
        return total(jnp.stack(outputs, 1), every if all_states else state)

    found, theirs = (jax.jit(jax.grad(f, argnums=(0, 1, 2)))(params, x, state) for f in (ours, expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6 * np.abs(b).max()), found, theirs)


def test_clipping_cells_passes_no_gradient_and_a_limit_out_of_reach_changes_no_bit():
    params = random_params(recurrent.specs(4, 3, recurrent.uniform(1.0)), seed=5)
    real, starts = np.ones((1, 7), bool), np.zeros((1, 7), bool)

    def last_cell(x, clip):
        _, state = recurrent.apply(params["input"], params["recurrent"]["kernel"], x, recurrent.initial_state(1, 3),
                                   real=real, starts=starts, clip_cell=clip)
        return state["cell"].sum(), state["cell"]

    none, far, near = (jax.jit(jax.value_and_grad(partial(last_cell, clip=clip), has_aux=True))(X)
                       for clip in (0.0, 1e3, 1e-3))
    jax.tree.map(np.testing.assert_array_equal, none, far)
    np.testing.assert_array_equal(np.abs(near[0][1]), np.full((1, 3), 1e-3, np.float32))
    assert np.asarray(none[1]).any() and not np.asarray(near[1]).any()


def test_attention_pooling_is_an_average_of_each_texts_own_tokens():
    params = random_params(attention_pooling.specs(4, 5), seed=2)
    mask = np.array([[[1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0], [0] * 7]], bool)
    weights = np.asarray(jax.jit(attention_pooling.weights)(params, X, mask))[0]
    np.testing.assert_allclose(weights.sum(-1), [1, 1, 0], atol=1e-6)
    assert not weights[~mask[0]].any() and weights[0, 0] != weights[0, 1]
    pooled = np.asarray(jax.jit(attention_pooling.apply)(params, X, mask))[0]
    np.testing.assert_allclose(pooled[0], weights[0, :2] @ X[0, :2], atol=1e-6)
    np.testing.assert_allclose(pooled[1], X[0, 3], atol=1e-6)


def test_a_words_vector_depends_on_its_characters_alone():
    params = random_params(char_cnn.specs(5, 6, 3), seed=3)
    words = jnp.array([[97, 98, 0, 0], [97, 98, 99, 0], [0, 0, 0, 0]])
    found = np.asarray(jax.jit(char_cnn.apply)(params, words))
    np.testing.assert_allclose(jax.jit(char_cnn.apply)(params, words[:1, :2]), found[:1], atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3 and not found[2].any()
    table = np.asarray(params["embedding"])[[0, 97, 98, 0]] * [[0], [1], [1], [0]]  # zeros around the word
    kernel, bias = np.asarray(params["kernel"]), np.asarray(params["bias"])
    expected = [np.tanh(sum(table[i + j] @ kernel[j] for j in range(3)) + bias) for i in range(2)]
    np.testing.assert_allclose(found[0], np.max(expected, 0), atol=1e-5)
