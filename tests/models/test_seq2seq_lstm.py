"""The LSTM encoder-decoder, against loops over single examples in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.params import count
from lmrep.layers import dropout
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, seq2seq_lstm
from lmrep.models.base import Context, Inputs
from lmrep.models.seq2seq_lstm import Config
from tests.cases import slow_after
from tests.reference import random_params

V, E, D = 11, 6, 8
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(V, size=(2, 7)), RNG.integers(V, size=(2, 5))
SOURCE_MASK = np.array([[1] * 7, [1] * 4 + [0] * 3])


def network(**fields):
    c = Config(**{"vocab": V, "embedding": E, "width": D, "dropout": 0.0} | fields)
    model = MODELS["seq2seq_lstm"].build(c, Execution(), "network")
    return model, random_params(model.specs, seed=1)


def encode(model, params, inputs, **options):
    return jax.jit(lambda params, inputs: model.encode(params, inputs, **options))(params, inputs)


def inputs(source=SOURCE, source_ids=SOURCE_MASK, target=TARGET, target_ids=None):
    ids = np.ones_like(target) if target_ids is None else target_ids
    return Inputs(jnp.asarray(target), attention_mask=AttentionMask(jnp.asarray(ids), causal=True),
                  source=Inputs(jnp.asarray(source), attention_mask=AttentionMask(jnp.asarray(source_ids))))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(p, x, state):
    h, c = state
    gates = x @ p["input"]["kernel"] + p["input"]["bias"] + h @ p["recurrent"]["kernel"]
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def by_hand(params, source, target, attention="general", feeding=True, masks=None):
    """(the encoder's outputs [s, d], the decoder's [t, d], its attention probabilities [t, s]) of one example without
    padding. Of `masks` [n, t, d], the first multiply what each layer of the decoder gives to the next, the last its
    outputs."""
    p = jax.tree.map(np.asarray, params)
    x, states = p["source_embedding" if "source_embedding" in p else "embedding"]["token"][source], []
    for name in sorted(p["encoder"]):
        outputs, last = {}, {}
        for direction in ("forward", "backward"):
            state, found = (np.zeros(D // 2), np.zeros(D // 2)), []
            for vector in x if direction == "forward" else x[::-1]:
                state = lstm(p["encoder"][name][direction], vector, state)
                found.append(state[0])
            outputs[direction] = np.array(found if direction == "forward" else found[::-1])
            last[direction] = state
        x = np.concatenate([outputs["forward"], outputs["backward"]], 1)
        states.append([np.concatenate([last["forward"][i], last["backward"][i]]) for i in (0, 1)])
    output, decoded, probabilities = np.zeros(D), [], []
    masks = np.ones((len(p["decoder"]), len(target), 1)) if masks is None else masks
    for step, token in enumerate(target):
        y = np.concatenate([p["embedding"]["token"][token], output]) if feeding else p["embedding"]["token"][token]
        for i, name in enumerate(sorted(p["decoder"])):
            y = y * masks[i - 1, step] if i else y
            states[i] = lstm(p["decoder"][name], y, states[i])
            y = states[i][0]
        output = y
        if attention != "none":
            logits = x @ (y @ p["attention"]["weigh"]["kernel"] if attention == "general" else y)
            weights = np.exp(logits - logits.max())
            probabilities.append(weights / weights.sum())
            context = probabilities[-1] @ x
            output = np.tanh(np.concatenate([context, y]) @ p["attention"]["output"]["kernel"])
        output = output * masks[-1, step]
        decoded.append(output)
    return x, np.array(decoded), np.array(probabilities)


@pytest.mark.parametrize("fields", slow_after(1, [
    {}, {"input_feeding": False, "layers": 1}, {"attention": "dot", "tied": "embeddings"},
    {"attention": "none", "input_feeding": False}]))
def test_outputs_and_attention_equal_a_loop_over_time(fields):
    model, params = network(**fields)
    attends = fields.get("attention") != "none"
    encoding = encode(model, params, inputs(), attention=attends)
    found = encoding.hidden
    assert not attends or (encoding.cross_attention.shape == (1, 2, 1, 5, 7) and encoding.attention is None)
    for i, length in enumerate((7, 4)):
        encoded, decoded, probabilities = by_hand(params, SOURCE[i, :length], TARGET[i], fields.get(
            "attention", "general"), fields.get("input_feeding", True))
        if attends:
            probabilities = np.pad(probabilities, ((0, 0), (0, 7 - length)))
            np.testing.assert_allclose(encoding.cross_attention[0, i, 0], probabilities, atol=2e-6)
        np.testing.assert_allclose(found[i], decoded, atol=2e-6)
        alone = encode(model, params, Inputs(jnp.asarray(SOURCE[i : i + 1]), attention_mask=AttentionMask(
            jnp.asarray(SOURCE_MASK[i : i + 1]))), layers=True)
        np.testing.assert_allclose(alone.hidden[0, :length], encoded, atol=2e-6)
        assert len(alone.layers) == fields.get("layers", 2) + 1 and not alone.hidden[0, length:].any()


def test_dropout_acts_between_layers_and_on_the_output_that_is_fed_back(monkeypatch):
    model, params = network()
    masks = 2.0 * RNG.integers(0, 2, (3, *TARGET.shape, D))
    drawn = iter(masks)
    monkeypatch.setattr(dropout, "apply", lambda key, x, rate: (
        jnp.asarray(next(drawn), x.dtype) if x.shape == masks.shape[1:] else x))
    found = jax.jit(model.encode)(params, inputs(), jax.random.key(0)).hidden
    for i, length in enumerate((7, 4)):
        expected = by_hand(params, SOURCE[i, :length], TARGET[i], masks=masks[:, i])[1]
        np.testing.assert_allclose(found[i], expected, atol=2e-6)


@pytest.mark.slow
def test_packed_pairs_are_independent():
    model, params = network()
    source = np.concatenate([SOURCE[1, :4], SOURCE[0], [0]])[None]
    target = np.concatenate([TARGET[1, :3], TARGET[0]])[None]
    ids = np.array([[1] * 4 + [2] * 7 + [0]]), np.array([[1] * 3 + [2] * 5])
    found = encode(model, params, inputs(source, ids[0], target, ids[1]), attention=True)
    for steps, tokens, i in ((slice(0, 3), slice(0, 4), 1), (slice(3, 8), slice(4, 11), 0)):
        _, decoded, probabilities = by_hand(params, source[0, tokens], TARGET[i, : steps.stop - steps.start])
        np.testing.assert_allclose(found.hidden[0, steps], decoded, atol=2e-6)
        expected = np.zeros((steps.stop - steps.start, 12))
        expected[:, tokens] = probabilities
        np.testing.assert_allclose(found.cross_attention[0, 0, 0, steps], expected, atol=2e-6)


def test_the_encoder_has_the_parameters_of_cove():
    """3,609,600 in PyTorch, whose LSTMs have two biases."""
    model = seq2seq_lstm.build(Config(vocab=V))
    second_biases = 2 * 2 * 4 * 300
    assert count(model.specs["encoder"]) + second_biases == 3_609_600


@pytest.mark.parametrize("tied", ["none", "embeddings"])
def test_the_encoder_alone_has_the_paths_and_the_vectors_of_the_encoder(tied):
    both, params = network(tied=tied)
    alone, _ = network(tied=tied, stacks="encoder")
    own = {name: params[name] for name in alone.specs}
    assert list(own) == ["embedding" if tied == "embeddings" else "source_embedding", "encoder"]
    read = inputs().source
    np.testing.assert_array_equal(encode(alone, own, read).hidden, encode(both, params, read).hidden)
    assert alone.conditions_on == {Context.BOTH} and alone.state.decode is None
    assert 0 < alone.sizes.matrices < both.sizes.matrices
