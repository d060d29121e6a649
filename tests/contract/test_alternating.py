"""A network with rotary positions, layers that alternate and norms without a bias, under every execution."""

import functools

import jax
import numpy as np
import pytest

from lmrep.experiment import network_contracts
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models.base import Inputs
from tests import reference
from tests.contract import alternating

C = alternating.Config(vocab=11)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, C.vocab, (2, 9)).astype(np.int32)
ORDER, ONES = np.broadcast_to(np.arange(9), TOKENS.shape), np.ones_like(TOKENS)
WEIGHTS = RNG.normal(size=(*TOKENS.shape, C.width)).astype(np.float32)
PARAMS = reference.random_params(alternating.specs(C), seed=1, stddev=0.4)
PLAIN = Execution(scan=False)
REMAT = Execution(scan=True, remat="dots", attention="chunked")


@functools.cache
def program(causal=False, layers=False):
    """(parameters, tokens, positions, segments, at) -> what the network computes."""
    model = alternating.build(C, PLAIN)
    return jax.jit(lambda params, tokens, positions, segments, at=None: model.encode(
        params, Inputs(tokens, positions=positions, attention_mask=AttentionMask(segments, causal)), at=at,
        layers=layers))


def encode(causal=False, layers=False, at=None, segments=ONES, positions=ORDER):
    return program(causal, layers)(PARAMS, TOKENS, positions, segments, at)


def gradient(execution):
    """(gradient of the parameters, hidden)."""
    model = alternating.build(C, execution)

    def loss(params):
        hidden = model.encode(params, Inputs(TOKENS)).hidden
        return (hidden * WEIGHTS).sum(), hidden

    return jax.jit(jax.grad(loss, has_aux=True))(PARAMS)


def test_every_execution_gives_the_same_values_and_gradients():
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient(REMAT), gradient(PLAIN))


@pytest.mark.slow
def test_chosen_positions_and_layers():
    at, encoded = np.array([[8, 0, 3], [2, 2, 7]]), encode(layers=True)
    assert len(encoded.layers) == C.layers + 1
    np.testing.assert_allclose(encode(at=at).hidden, np.take_along_axis(
        np.asarray(encoded.hidden), at[..., None], 1), atol=1e-5)


@pytest.mark.slow
def test_decodes_as_it_encodes():
    model = alternating.build(C, REMAT)
    cache, outputs, decode = model.state.cache(PARAMS, len(TOKENS), 9), [], jax.jit(model.state.decode)
    for part in (TOKENS[:, :4], TOKENS[:, 4:5], TOKENS[:, 5:]):
        hidden, cache = decode(PARAMS, part, cache)
        outputs.append(hidden)
    np.testing.assert_allclose(np.concatenate(outputs, 1), encode(causal=True).hidden, atol=1e-5)


def test_positions_act_by_their_distances():
    expected, segments = encode().hidden, np.array([[1] * 4 + [2] * 5] * 2)
    np.testing.assert_allclose(encode(positions=ORDER + 20).hidden, expected, atol=1e-4)
    assert np.abs(encode(positions=2 * ORDER).hidden - expected).max() > 1e-2
    packed = encode(segments=segments, positions=np.where(ORDER < 4, ORDER, ORDER - 4))
    np.testing.assert_allclose(packed.hidden, encode(segments=segments).hidden, atol=1e-4)


def test_local_layers_read_a_window():
    c = alternating.Config(vocab=C.vocab, layers=2)
    params = reference.random_params(alternating.specs(c), seed=2)
    params["layers"]["attention"]["output"]["kernel"][0] = 0  # the global layer reads nothing
    other = np.where(np.arange(9) == 0, (TOKENS + 1) % C.vocab, TOKENS)
    hidden = jax.jit(lambda params, tokens: alternating.build(c).encode(params, Inputs(tokens)).hidden)
    a, b = (np.asarray(hidden(params, tokens)) for tokens in (TOKENS, other))
    np.testing.assert_array_equal(np.any(np.abs(a - b) > 1e-6, axis=(0, 2)), np.arange(9) < c.window)


def test_the_norm_is_a_choice():
    built = {name: alternating.build(alternating.Config(vocab=C.vocab, norm=name)) for name in
             ("layer", "layer_without_bias", "rms")}
    assert {name: "bias" in model.specs["final_norm"] for name, model in built.items()} == {
        "layer": True, "layer_without_bias": False, "rms": False}
    found = jax.jit(lambda: [built[name].encode(PARAMS, Inputs(TOKENS)).hidden
                             for name in ("layer_without_bias", "rms")])()
    assert not np.allclose(*found, atol=1e-2)


def test_its_row_fits_the_contract():
    network_contracts.check_network("alternating", alternating.DEFINITION)
