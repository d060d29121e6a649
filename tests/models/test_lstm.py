"""Recurrent networks against a NumPy reference, and the properties of their state."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers.attention import AttentionMask
from lmrep.models import lstm
from lmrep.models.base import Inputs
from tests import reference
from tests.cases import slow_after

V, T, B = 31, 12, 3
CONFIGS = {
    "lstm": lstm.Config(vocab=V, width=8, layers=2, dropout=0.0),
    "narrow_table": lstm.Config(vocab=V, width=8, layers=3, embedding=5, dropout=0.0),
    "untied": lstm.Config(vocab=V, width=8, layers=1, embedding=12, tied=False, dropout=0.0),
    "rnn": lstm.Config(vocab=V, width=8, layers=2, cell="rnn", dropout=0.0),
    "clipped": lstm.Config(vocab=V, width=8, layers=2, dropout=0.0, clip_cell=0.3),
}
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, V, (B, T)).astype(np.int32)


def network(name, **changes):
    model = lstm.build(CONFIGS[name], **changes)
    return model, reference.random_params(model.specs, seed=1)


def encode(model, params, tokens, segment_ids=None, **options):
    carry = options.pop("carry", None)
    mask = None if segment_ids is None else AttentionMask(jnp.asarray(segment_ids), causal=True)
    inputs = Inputs(tokens=jnp.asarray(tokens), attention_mask=mask, carry=carry)
    return jax.jit(lambda p, x: model.encode(p, x, **options))(params, inputs)


def close(computed, expected, atol=1e-6):
    np.testing.assert_allclose(computed, expected, rtol=0, atol=atol)


# --- the equations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_reference(layer, xs, clip=np.inf):
    """Hochreiter and Schmidhuber (1997) with forget gates (Gers et al., 2000), one gate and one time step at a time."""
    w, b, u = (np.asarray(x, np.float64) for x in
               (layer["input"]["kernel"], layer["input"]["bias"], layer["recurrent"]["kernel"]))
    d = u.shape[0]
    (wi, wf, wg, wo), (ui, uf, ug, uo) = (np.split(x, 4, axis=1) for x in (w, u))
    bi, bf, bg, bo = np.split(b, 4)
    h, c, computed = np.zeros(d), np.zeros(d), []
    for x in xs:
        i, f, o = sigmoid(x @ wi + h @ ui + bi), sigmoid(x @ wf + h @ uf + bf), sigmoid(x @ wo + h @ uo + bo)
        g = np.tanh(x @ wg + h @ ug + bg)
        c = np.clip(f * c + i * g, -clip, clip)
        h = o * np.tanh(c)
        computed.append(h)
    return np.array(computed), {"hidden": h, "cell": c}


def rnn_reference(layer, xs):
    h, computed = np.zeros(layer["recurrent"]["kernel"].shape[0]), []
    for x in xs:
        h = np.tanh(x @ np.asarray(layer["input"]["kernel"], np.float64) + np.asarray(layer["input"]["bias"])
                    + h @ np.asarray(layer["recurrent"]["kernel"], np.float64))
        computed.append(h)
    return np.array(computed), {"hidden": h}


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_equal_the_published_equations(name):
    (model, params), c = network(name), CONFIGS[name]
    encoded = encode(model, params, TOKENS, layers=True)
    layer_reference = rnn_reference if name == "rnn" else partial(lstm_reference, clip=c.clip_cell or np.inf)
    for b in range(B):
        xs = np.asarray(params["embedding"]["token"], np.float64)[TOKENS[b]]
        close(encoded.layers[0][b], xs)
        for i in range(c.layers):
            xs, last = layer_reference(params["layers"][str(i)], xs)
            close(encoded.layers[i + 1][b], xs)
            for name_of_state, value in last.items():
                close(encoded.carry[str(i)][name_of_state][b], value)
        close(encoded.hidden[b], xs)
    if c.clip_cell:
        assert 0.1 < (np.abs(encoded.carry["0"]["cell"]) == np.float32(c.clip_cell)).mean() < 0.9


def test_the_forget_gate_starts_open():
    c = lstm.Config(vocab=V, width=8, layers=1, forget_bias=1.5, init_range=0.05)
    params = P.init(lstm.specs(c), jax.random.key(0))["layers"]["0"]
    np.testing.assert_array_equal(params["input"]["bias"], [0.0] * 8 + [1.5] * 8 + [0.0] * 16)
    assert 0.04 < np.abs(params["recurrent"]["kernel"]).max() <= 0.05


def test_the_default_range_of_initial_weights_is_that_of_the_width():
    params = P.init(lstm.specs(lstm.Config(vocab=V, width=64, layers=1)), jax.random.key(0))
    assert 0.12 < np.abs(params["layers"]["0"]["recurrent"]["kernel"]).max() <= 0.125


# --- the state


@pytest.mark.parametrize(("name", "length"), slow_after(1, [("narrow_table", 4), ("rnn", 1), ("clipped", 5)]))
def test_a_text_split_into_examples_with_carried_state_equals_the_unsplit_text(name, length):
    model, params = network(name)
    expected = encode(model, params, TOKENS)
    carry, computed = model.state.carry(B), []
    for start in range(0, T, length):
        encoded = encode(model, params, TOKENS[:, start : start + length], carry=carry)
        carry = encoded.carry
        computed.append(encoded.hidden)
    close(np.concatenate(computed, 1), expected.hidden)
    jax.tree.map(close, carry, expected.carry)


def test_padding_leaves_the_state_unchanged():
    model, params = network("lstm")
    segment_ids = np.array([[1] * 7 + [0] * 5] * B, np.int32)
    computed, expected = encode(model, params, TOKENS, segment_ids), encode(model, params, TOKENS[:, :7])
    jax.tree.map(close, computed.carry, expected.carry)


# --- options


def test_dropout_acts_between_layers_and_not_on_the_state():
    c = lstm.Config(vocab=V, width=8, layers=1, dropout=0.5)
    model = lstm.build(c)
    params = reference.random_params(model.specs, seed=1)
    encoded = jax.jit(lambda p, key: model.encode(p, Inputs(tokens=TOKENS), key, layers=True))(
        params, jax.random.key(0))
    hidden, last = np.asarray(encoded.hidden), np.asarray(encoded.layers[1])
    kept = hidden != 0
    assert 0.3 < kept.mean() < 0.7
    close(hidden[kept], 2 * last[kept])
    close(encoded.carry["0"]["hidden"], last[:, -1])
