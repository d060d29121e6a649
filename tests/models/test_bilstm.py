"""Bidirectional LSTM language models against a NumPy reference, and the properties of their directions and states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.layers import highway_cnn, projected_lstm
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import bilstm
from lmrep.models.base import Inputs
from lmrep.planning import hlo
from tests import reference
from tests.cases import slow_after

slow = pytest.mark.slow
V, T, B, C = 23, 10, 2, 9
SMALL = {"vocab": V, "cell": 7, "width": 4, "layers": 2, "dropout": 0.0, "character_width": 3, "filters": (2, 3, 4),
         "highways": 2, "clip_cell": 0.4, "clip_output": 0.3}
CONFIGS = {"characters": {}, "words": {"reads": "words"}, "forward": {"reads": "words", "directions": "forward"},
           "three_layers": {"reads": "words", "layers": 3, "residual": False, "clip_cell": 0.0, "clip_output": 0.0},
           "tanh": {"activation": "tanh", "highways": 0},
           "two_models": {"shared": False, "layers": 1}, "two_tables": {"shared": False, "reads": "words"}}
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, V, (B, T)).astype(np.int32)
CHARACTERS = RNG.integers(1, 262, (B, T, C)).astype(np.int32)


def network(name, **changes):
    execution = changes.pop("execution", Execution())
    model = bilstm.build(bilstm.Config(**(SMALL | CONFIGS[name] | changes)), execution)
    return model, reference.random_params(model.specs, seed=1)


def inputs(tokens=TOKENS, characters=CHARACTERS, segment_ids=None, **fields):
    mask = None if segment_ids is None else AttentionMask(jnp.asarray(segment_ids))
    return Inputs(jnp.asarray(tokens), characters=jnp.asarray(characters), attention_mask=mask, **fields)


def encode(model, params, given, **options):
    return jax.jit(lambda p, x: model.encode(p, x, **options))(params, given)


def close(computed, expected, atol=2e-6):
    np.testing.assert_allclose(computed, expected, rtol=0, atol=atol)


# --- the equations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def clipped(x, limit):
    return np.clip(x, -limit, limit) if limit else x


def words_reference(c, params, tokens, characters):
    """The vectors of the words of a sentence: one word, one convolution, one position at a time."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    if c.reads == "words":
        return params["token"][tokens]
    found = []
    for word in characters:
        x, features = params["embedding"][word], []
        for w in range(1, len(c.filters) + 1):
            kernel, bias = params["convolutions"][str(w)]["kernel"], params["convolutions"][str(w)]["bias"]
            features.append(np.max([np.einsum("we,wef->f", x[i : i + w], kernel) + bias
                                    for i in range(len(word) - w + 1)], axis=0))
        y = np.concatenate(features)
        y = np.tanh(y) if c.activation == "tanh" else np.maximum(y, 0)
        for i in range(c.highways):
            own = params["highways"][str(i)]
            gate, transform = (y @ own[name]["kernel"] + own[name]["bias"] for name in ("gate", "transform"))
            y = sigmoid(gate) * np.maximum(transform, 0) + (1 - sigmoid(gate)) * y
        found.append(y @ params["projection"]["kernel"] + params["projection"]["bias"])
    return np.array(found)


def lstm_reference(c, layer, xs):
    """Sak et al. (2014) with forget gates and clips, one time step at a time."""
    w, b, r, p = (np.asarray(x, np.float64) for x in (layer["input"]["kernel"], layer["input"]["bias"],
                                                    layer["recurrent"]["kernel"], layer["projection"]["kernel"]))
    hidden, cell, found = np.zeros(c.width), np.zeros(c.cell), []
    for x in xs:
        i, f, g, o = np.split(x @ w + hidden @ r + b, 4)
        cell = clipped(sigmoid(f) * cell + sigmoid(i) * np.tanh(g), c.clip_cell)
        hidden = clipped((sigmoid(o) * np.tanh(cell)) @ p, c.clip_output)
        found.append(hidden)
    return np.array(found), {"hidden": hidden, "cell": cell}


def network_reference(c, params, tokens, characters):
    """Of one sentence: the layers' outputs, and the last states."""
    directions, states = [], {}
    for name, step in list({"forward": 1, "backward": -1}.items())[: len(c.names)]:
        xs = words_reference(c, params["embedding"] if c.shared else params["embedding"][name], tokens, characters)
        x, own, states[name] = xs[::step], [xs], {}
        for i in range(c.layers):
            y, states[name][str(i)] = lstm_reference(c, params["layers"][str(i)][name], x)
            x = x + y if c.residual and i else y
            own.append(x[::step])
        directions.append(own)
    return [np.concatenate(each, -1) for each in zip(*directions, strict=True)], states


@pytest.mark.parametrize("name", slow_after(2, ["characters", "two_models", "three_layers", "forward", "tanh",
                                                "two_tables"]))
def test_outputs_equal_the_published_equations(name):
    c, (model, params) = bilstm.Config(**(SMALL | CONFIGS[name])), network(name)
    found = encode(model, params, inputs(), layers=True)
    for b in range(B):
        layers, states = network_reference(c, params, TOKENS[b], CHARACTERS[b])
        for computed, expected in zip(found.layers, layers, strict=True):
            close(computed[b], expected)
        jax.tree.map(lambda computed, expected, b=b: close(computed[b], expected), found.carry, states)
    close(found.hidden, found.layers[-1])


def test_the_backward_pass_is_that_of_the_equations():
    """The gradients written by hand, against JAX's of one time step after another, with clips, resets and padding."""
    clip, rng, (t, b, d, cell, width) = projected_lstm.Clip(0.3, 0.2), np.random.default_rng(2), (5, 3, 5, 6, 4)
    specs = {str(i): projected_lstm.specs(d, cell, width) for i in range(2)}
    params = reference.random_params(specs, seed=3)
    x = {name: jnp.asarray(rng.normal(size=(b, t, d)), jnp.float32) for name in specs}
    state = {name: {"hidden": jnp.asarray(rng.normal(size=(b, width)) / 9, jnp.float32),
                    "cell": jnp.asarray(rng.normal(size=(b, cell)) / 9, jnp.float32)} for name in specs}
    real = jnp.asarray(rng.random((b, t)) < 0.8)
    starts = real & jnp.asarray(rng.random((b, t)) < 0.3)

    def of_layer(params, x, state):
        found = projected_lstm.apply([projected_lstm.Reading(
            params[name]["input"], params[name]["recurrent"]["kernel"], params[name]["projection"]["kernel"], x[name],
            state[name], real, starts) for name in specs], clip)
        return {name: each for name, each in zip(specs, found, strict=True)}

    def step_by_step(params, x, state):
        results = {}
        for name, own in params.items():
            hidden, cell, outputs = state[name]["hidden"], state[name]["cell"], []
            for i in range(t):
                old = hidden, cell
                hidden, cell = (jnp.where(starts[:, i, None], 0, value) for value in old)
                gates = (x[name][:, i] @ own["input"]["kernel"] + own["input"]["bias"]
                         + hidden @ own["recurrent"]["kernel"])
                i_, f, g, o = jnp.split(gates, 4, -1)
                cell = jnp.clip(jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i_) * jnp.tanh(g), -clip.cell, clip.cell)
                hidden = jnp.clip((jax.nn.sigmoid(o) * jnp.tanh(cell)) @ own["projection"]["kernel"], -clip.output,
                                  clip.output)
                hidden, cell = (jnp.where(real[:, i, None], new, value)
                                for new, value in zip((hidden, cell), old, strict=True))
                outputs.append(hidden)
            results[name] = jnp.stack(outputs, 1), {"hidden": hidden, "cell": cell}
        return results

    weights = jax.tree.map(lambda y: jnp.asarray(rng.normal(size=y.shape), jnp.float32),
                           jax.eval_shape(of_layer, params, x, state))

    def loss(function, *arguments):
        return sum(jax.tree.leaves(jax.tree.map(lambda w, y: (w * y).sum(), weights, function(*arguments))))

    computed, expected = (jax.jit(jax.value_and_grad(lambda *a, f=f: loss(f, *a), argnums=(0, 1, 2)))(params, x, state)
                          for f in (of_layer, step_by_step))
    jax.tree.map(lambda x, y: close(x, y, 2e-5), computed, expected)


# --- the directions


def test_a_text_split_into_examples_with_carried_state_equals_the_unsplit_text():
    model, params = network("words")
    other = RNG.integers(0, V, (B, T)).astype(np.int32)

    def two_texts(first, second, carry=None):
        return encode(model, params, Inputs(jnp.asarray(first), backward=Inputs(jnp.asarray(second)), carry=carry))

    expected, carry, computed = two_texts(TOKENS, other), model.state.carry(B), []
    for start in range(0, T, 5):
        found = two_texts(TOKENS[:, start : start + 5], other[:, start : start + 5], carry)
        carry = found.carry
        computed.append(found.hidden)
    close(np.concatenate(computed, 1), expected.hidden)
    jax.tree.map(close, carry, expected.carry)
    alone = encode(model, params, inputs(other[:, ::-1]))  # the other text, read from its end
    close(expected.hidden[..., 4:], alone.hidden[:, ::-1, 4:])


@slow
def test_each_device_computes_its_share_of_a_step():
    """Also of the products that stand for all time steps, whose gradients are sums over examples."""
    model, params = network("two_tables", cell=64, width=32)
    tokens = np.zeros((16, 9), np.int32)

    def program(params, tokens):
        step = jax.value_and_grad(lambda params: (model.encode(params, Inputs(tokens)).hidden**2).sum())
        return hlo.Program(jax.jit(step).lower(params).compile().as_text()).flops()

    expected, mesh = program(params, tokens), sharding.make_mesh(2, 4, 1)
    with sharding.use_mesh(mesh):
        found = program(jax.device_put(params, sharding.shardings(model.specs, mesh)),
                        jax.device_put(tokens, sharding.batch_sharding(mesh)))
    assert found == pytest.approx(expected / 8, rel=0.01)


# --- initial values and counts


@pytest.mark.slow
def test_initial_values_are_those_of_the_released_code():
    model = bilstm.build(bilstm.Config(vocab=V, cell=64, width=32, filters=(32, 32, 64)))
    params = P.init(model.specs, jax.random.key(0))
    embedding, layer = params["embedding"], params["layers"]["0"]["forward"]
    assert not np.asarray(embedding["embedding"][0]).any()
    assert 0.95 < np.abs(embedding["embedding"]).max() <= 1
    assert 0.045 < np.abs(embedding["convolutions"]["3"]["kernel"]).max() <= 0.05
    np.testing.assert_array_equal(embedding["highways"]["0"]["gate"]["bias"], highway_cnn.CARRY_BIAS)
    np.testing.assert_array_equal(layer["input"]["bias"], [0.0] * 64 + [1.0] * 64 + [0.0] * 128)


@pytest.mark.parametrize(("cell", "width", "highways", "count"), [
    (1024, 128, 1, 13_593_312), (2048, 256, 1, 28_027_744), (4096, 512, 2, 93_600_864)])
def test_counts_are_the_published_ones(cell, width, highways, count):
    assert P.count(bilstm.specs(bilstm.Config(cell=cell, width=width, highways=highways))) == count
