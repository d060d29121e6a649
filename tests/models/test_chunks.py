"""Texts that are read in chunks: vectors and losses as of texts that are read at once, gradients that stop between
chunks, masks that are drawn for each chunk, and memory for one chunk."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.params import flatten
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.models.awd_lstm import DROPOUT
from lmrep.models.base import Inputs
from lmrep.models.chunks import Chunks
from tests.cases import slow_after
from tests.reference import random_params

T, V, SIZE, KEPT = 10, 40, 4, 6
LENGTHS = np.array([1, 5, 9, 10, 0])
TOKENS = np.random.default_rng(0).integers(0, V, (len(LENGTHS), T)).astype(np.int32)
SEGMENTS = (np.arange(T) < LENGTHS[:, None]).astype(np.int32)


def network(name="awd_lstm", **fields):
    row = MODELS[name]
    model = row.build(row.config(**{**row.tiny, "vocab": V, "width": 12, "embedding": 8, **fields}), Execution(), name)
    return model, random_params(model.specs, 0)


def inputs(tokens=TOKENS, segments=SEGMENTS):
    return Inputs(jnp.asarray(tokens), attention_mask=AttentionMask(jnp.asarray(segments), causal=True))


def read(model, params, key=None, given=None, **chunks):
    return model.state.read(params, given or inputs(), key, chunks=Chunks(**chunks))


@pytest.mark.parametrize(("name", "counted_from", "size", "kept"), slow_after(2, [
    ("awd_lstm", "end", SIZE, 0), ("awd_lstm", "start", SIZE, KEPT), ("lstm", "end", SIZE, KEPT),
    ("lstm", "start", 1, 0), ("awd_lstm", "end", 1, 1), ("awd_lstm", "end", 64, 0)]))
def test_vectors_are_those_of_texts_that_are_read_at_once(name, counted_from, size, kept):
    model, params = network(name)
    whole = np.asarray(jax.jit(model.encode)(params, inputs()).hidden)
    found = jax.jit(partial(read, model, size=size, counted_from=counted_from, kept=kept))(params).hidden
    for vectors, hidden, length in zip(found, whole, LENGTHS, strict=True):
        x = hidden[max(0, length - (kept or length)) : length]
        expected = np.stack([x[-1], x.max(0), x.mean(0)]) if length else np.zeros((3, x.shape[-1]))
        np.testing.assert_allclose(vectors, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kept", slow_after(1, [0, KEPT]))
def test_padding_before_a_text_may_count_as_its_tokens(kept):
    model, params = network()
    found = read(model, params, size=SIZE, kept=kept, padding=True).hidden
    padded = np.stack([np.roll(row, T - n) for row, n in zip(TOKENS, LENGTHS, strict=True)])
    expected = read(model, params, None, inputs(padded, np.ones_like(padded)), size=SIZE, kept=kept).hidden
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("counted_from", "kept"), slow_after(1, [
    ("start", KEPT), ("end", KEPT), ("start", 0), ("end", 1)]))
def test_losses_are_those_of_the_kept_tokens_of_texts_that_are_read_at_once(counted_from, kept):
    """Whatever the chunks, and the other texts of the batch."""
    model, params = network()
    raw = np.asarray(jax.jit(partial(model.encode, layers=True))(params, inputs()).layers[-1], np.float64)
    found = read(model, params, size=SIZE, counted_from=counted_from, kept=kept).losses
    parts = [x[max(0, n - (kept or n)) : n] for x, n in zip(raw, LENGTHS, strict=True)]
    for name, squares in (("ar", [x**2 for x in parts]), ("tar", [np.diff(x, axis=0) ** 2 for x in parts])):
        np.testing.assert_allclose(found[name].sum, sum(x.sum() for x in squares), rtol=1e-5)
        assert found[name].count == sum(x.size for x in squares)


def one_by_one(model, params, key, size, kept):
    """The vectors, and the losses `ar` and `tar`, of a text without padding, in chunks from its end: each a call of
    `encode`."""
    state, outputs, raw = model.state.carry(1), [], []
    padding = -T % size
    for i, first in enumerate(range(-padding, T, size)):
        state, part = jax.lax.stop_gradient(state), slice(max(first, 0), first + size)
        real = np.arange(first, first + size)[None] >= 0
        tokens = np.zeros((1, size), np.int32)
        tokens[real] = TOKENS[3, part]
        encoded = model.encode(params, inputs(tokens, real.astype(np.int32))._replace(carry=state),
                               jax.random.fold_in(key, i), layers=True)
        state = encoded.carry
        outputs.append(encoded.hidden[0, real[0]])
        raw.append(encoded.layers[-1][0, real[0]])
    x, raw = (jnp.concatenate(some)[T - kept:] for some in (outputs, raw))
    return jnp.stack([x[-1], x.max(0), x.mean(0)]), {"ar": (x**2).mean(), "tar": ((raw[1:] - raw[:-1]) ** 2).mean()}


@pytest.mark.parametrize("kept", slow_after(1, [KEPT, T]))
def test_training_draws_masks_for_each_chunk_and_stops_gradients_between_them(kept):
    """Loss and gradient are those of a loop over calls of the network, whose states are constants."""
    model, params = network(**dict.fromkeys(DROPOUT, 0.4))
    weights, key = np.random.default_rng(1).normal(size=(3, 8)), jax.random.key(3)

    def in_chunks(params):
        encoded = read(model, params, key, inputs(TOKENS[3:4], SEGMENTS[3:4]), size=SIZE, kept=kept)
        return encoded.hidden[0], {name: term.sum / term.count for name, term in encoded.losses.items()}

    def gradient(function):
        def total(params):
            vectors, losses = function(params)
            return (vectors * weights).sum() + losses["ar"] + 2 * losses["tar"]

        return jax.jit(jax.value_and_grad(total))(params)

    (found, grads), (expected, expected_grads) = map(
        gradient, (in_chunks, partial(one_by_one, model, key=key, size=SIZE, kept=kept)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    expected_grads = flatten(expected_grads)
    for path, value in flatten(grads).items():
        np.testing.assert_allclose(value, expected_grads[path], rtol=1e-4, atol=1e-6)


def test_no_gradient_reaches_the_tokens_before_the_last_chunk():
    model, params = network("lstm")
    tokens = np.arange(T, dtype=np.int32)[None]
    for counted_from, first in (("end", T - SIZE), ("start", T - T % SIZE)):
        grads = jax.jit(jax.grad(lambda p, c=counted_from: read(
            model, p, None, inputs(tokens, np.ones_like(tokens)), size=SIZE, counted_from=c, kept=1).hidden[0, 0].sum(
            )))(params)
        reached = np.flatnonzero(np.abs(grads["embedding"]["token"]).sum(-1))
        assert reached.tolist() == [*range(first, T)]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_activations_of_a_text():
    model, params = network(width=64, embedding=16)

    def memory(length, **chunks):
        given = inputs(np.zeros((4, length), np.int32), np.ones((4, length), np.int32))

        def loss(params):
            hidden = read(model, params, None, given, **chunks).hidden if chunks else model.encode(params, given).hidden
            return jnp.square(hidden).sum()

        return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

    whole, in_chunks = ([memory(length, **chunks) for length in (256, 4096)] for chunks in ({}, {"size": 64}))
    assert whole[1] > 10 * whole[0]
    assert in_chunks[1] - in_chunks[0] < (whole[1] - whole[0]) / 20
