"""A network with rotary positions, layers that alternate and norms without a bias, under every execution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.experiment import contracts
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models.base import Inputs
from tests import reference
from tests.contract import alternating

C = alternating.Config(vocab=11)
RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, C.vocab, (2, 9)), jnp.int32)
WEIGHTS = RNG.normal(size=(*TOKENS.shape, C.width)).astype(np.float32)
PARAMS = reference.random_params(alternating.specs(C), seed=1, stddev=0.4)
PLAIN = Execution(scan=False)
EXECUTIONS = [PLAIN, Execution(scan=True), Execution(scan=False, remat="full"),
              Execution(scan=True, remat="dots", attention="chunked")]


def encode(execution=PLAIN, causal=False, segments=None, **options):
    positions = options.pop("positions", None)
    mask = AttentionMask(jnp.ones_like(TOKENS) if segments is None else segments, causal)
    model = alternating.build(C, execution)
    return jax.jit(lambda params: model.encode(params, Inputs(TOKENS, positions=positions, attention_mask=mask),
                                               **options))(PARAMS)


@pytest.mark.parametrize("execution", EXECUTIONS[1:], ids=str)
def test_every_execution_gives_the_same_values_and_gradients(execution):
    def loss(params, execution):
        return (alternating.build(C, execution).encode(params, Inputs(TOKENS)).hidden * WEIGHTS).sum()

    found, expected = (jax.jit(jax.grad(loss), static_argnums=1)(PARAMS, each) for each in (execution, PLAIN))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, expected)


@pytest.mark.parametrize("execution", EXECUTIONS, ids=str)
def test_chosen_positions_and_layers(execution):
    at, encoded = jnp.asarray([[8, 0, 3], [2, 2, 7]]), encode(execution, layers=True)
    assert len(encoded.layers) == C.layers + 1
    np.testing.assert_allclose(encode(execution, at=at).hidden, np.take_along_axis(
        np.asarray(encoded.hidden), np.asarray(at)[..., None], 1), atol=1e-5)


@pytest.mark.parametrize("execution", EXECUTIONS[:2], ids=str)
def test_decodes_as_it_encodes(execution):
    model = alternating.build(C, execution)
    cache, outputs, decode = model.state.cache(PARAMS, len(TOKENS), 9), [], jax.jit(model.state.decode)
    for part in (TOKENS[:, :4], TOKENS[:, 4:5], TOKENS[:, 5:]):
        hidden, cache = decode(PARAMS, part, cache)
        outputs.append(hidden)
    np.testing.assert_allclose(jnp.concatenate(outputs, 1), encode(execution, causal=True).hidden, atol=1e-5)


def test_positions_act_by_their_distances():
    order = jnp.broadcast_to(jnp.arange(9), TOKENS.shape)
    expected = encode().hidden
    np.testing.assert_allclose(encode(positions=order + 20).hidden, expected, atol=1e-4)
    assert np.abs(encode(positions=2 * order).hidden - expected).max() > 1e-2
    packed = encode(segments=jnp.asarray([[1] * 4 + [2] * 5] * 2), positions=jnp.where(order < 4, order, order - 4))
    np.testing.assert_allclose(packed.hidden, encode(segments=jnp.asarray([[1] * 4 + [2] * 5] * 2)).hidden, atol=1e-4)


def test_local_layers_read_a_window():
    c = alternating.Config(vocab=C.vocab, layers=2)
    params = reference.random_params(alternating.specs(c), seed=2)
    params["layers"]["attention"]["output"]["kernel"][0] = 0  # the global layer reads nothing
    other = TOKENS.at[:, 0].set((TOKENS[:, 0] + 1) % C.vocab)
    a, b = (alternating.build(c).encode(params, Inputs(tokens)).hidden for tokens in (TOKENS, other))
    np.testing.assert_array_equal(np.any(np.abs(a - b) > 1e-6, axis=(0, 2)), np.arange(9) < c.window)


def test_the_norm_is_a_choice():
    built = {name: alternating.build(alternating.Config(vocab=C.vocab, norm=name)) for name in
             ("layer", "layer_without_bias", "rms")}
    assert {name: "bias" in model.specs["final_norm"] for name, model in built.items()} == {
        "layer": True, "layer_without_bias": False, "rms": False}
    found = [built[name].encode(PARAMS, Inputs(TOKENS)).hidden for name in ("layer_without_bias", "rms")]
    assert not np.allclose(*found, atol=1e-2)


def test_its_row_fits_the_contract():
    contracts.check_network("alternating", alternating.DEFINITION)
