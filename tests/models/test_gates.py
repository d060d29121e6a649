"""Gates of attention heads, and networks without some of their heads."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.layers import attention
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import pruned_heads, transformer
from lmrep.models.base import Inputs, with_gates
from lmrep.models.transformer import Config
from tests import reference

SIZES = {"vocab": 30, "width": 12, "layers": 3, "heads": 3, "mlp": 20, "max_length": 10, "token_types": 0}
CONFIGS = {"post": Config(**SIZES), "pre": Config(**SIZES, norm="pre", embedding_norm=False),
           "modern": Config(**SIZES, norm="pre", norm_kind="rms", first_norm=False, bias=False, positions="rotary",
                            query_key_norm=True),
           "shared": Config(**SIZES, embedding=6, share="all")}
slow = pytest.mark.slow
B, T = 2, 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 30, (B, T)))
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 0, 0, 0]])
REAL = np.asarray(SEGMENTS) > 0
WEIGHTS = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, 12)) * REAL[..., None], jnp.float32)
AT = jnp.asarray([[0, 3], [1, 2]])


@cache
def make(c, **execution):
    model = transformer.build(c, Execution(**execution))
    return model, reference.random_params(model.specs, seed=3)


@cache
def program(encode, causal):
    return jax.jit(lambda params, gates, key, at: encode(
        params, Inputs(TOKENS, attention_mask=AttentionMask(SEGMENTS, causal), gates=gates), key, at=at).hidden)


def run(model, params, gates=None, key=None, at=None, causal=False):
    return program(model.encode, causal)(params, gates, key, at)


@slow
@pytest.mark.parametrize(("name", "execution", "of_tokens"), [
    ("post", {}, True), ("post", {"attention": "chunked"}, False),
    ("pre", {"scan": True, "remat": "full", "dtype": "bfloat16"}, False)], ids=str)
def test_gates_of_ones_change_no_bit(name, execution, of_tokens):
    """Of outputs and gradients, with dropout; those of heads at some positions, those of tokens at all."""
    model, params = make(replace(CONFIGS[name], layers=2), **execution)
    key = jax.random.key(0)

    def outputs(gates, at, causal):
        def loss(params):
            hidden = run(model, params, gates, key, at, causal)
            return hidden.astype(jnp.float32).sum(), hidden
        return jax.jit(jax.grad(loss, has_aux=True))(params)

    shape, at, causal = ((2, B, T, 3), None, False) if of_tokens else ((2, 3), AT, True)
    jax.tree.map(np.testing.assert_array_equal, outputs(jnp.ones(shape), at, causal), outputs(None, at, causal))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), [
    ("post", AT), ("shared", None)], ids=str)
def test_gradients_by_gates_of_tokens_add_up_and_equal_differences(name, at):
    c = CONFIGS[name]
    model, params = make(c)
    weights = WEIGHTS if at is None else WEIGHTS[:, :2]

    @jax.jit
    def loss(gates):
        return (run(model, params, gates, at=at) * weights).sum()

    gradient = jax.jit(jax.grad(loss))
    by_head, by_token = gradient(jnp.ones((3, 3))), gradient(jnp.ones((3, B, T, 3)))
    np.testing.assert_allclose(by_token.sum((1, 2)), by_head, rtol=1e-4, atol=1e-5)
    for layer in range(3):
        gates, token = np.ones((3, B, T, 3), np.float32), (layer, 0, 3, 1)
        difference = 0.0
        for sign in (1, -1):
            gates[token] = 1 + sign * 1e-2
            difference += sign * float(loss(jnp.asarray(gates))) / 2e-2
        assert by_token[token] == pytest.approx(difference, rel=2e-2, abs=2e-3)
    assert not np.any(np.asarray(by_token)[:, ~REAL])
    if at is not None:  # the other positions of the last layer are not computed
        chosen = np.zeros((B, T), bool)
        chosen[np.arange(B)[:, None], AT] = True
        assert not np.any(np.asarray(by_token)[-1, ~chosen]) and np.any(np.asarray(by_token)[-1, chosen])


def test_attention_context_times_its_gradient_is_the_gradient_by_the_gate():
    params = reference.random_params(attention.specs(12, 3), seed=1)
    x = np.random.default_rng(2).normal(size=(B, T, 12)).astype(np.float32)
    mask = AttentionMask(SEGMENTS).to_bool()

    def loss(gates, shift):
        contexts = []

        def attend(query, kv, **options):
            output, weights = attention.dense(mask)(query, kv, **options)
            contexts.append(output)
            return output + shift, weights
        return (attention.apply(params, x, attend, 3, gates=gates)[0] * WEIGHTS).sum(), contexts[0]

    (by_gate, by_context), context = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(
        np.ones(3, np.float32), np.zeros((B, T, 3, 4), np.float32))
    np.testing.assert_allclose(by_gate, np.sum(context * by_context, (0, 1, 3)), rtol=1e-4, atol=1e-6)


REMOVED = {"uneven": "0:1;2:0,2", "even": "0:0;1:2;2:1"}


def prune(c, text, params):
    after = replace(c, pruned_heads=text)
    layers = pruned_heads.remove(jax.device_get(params["layers"]), c.kept_heads, after.kept_heads, c.head_width,
                                 transformer.SHARING[c.share])
    return after, params | {"layers": layers}


def gates_of(c):
    gates = np.zeros((c.layers, c.heads), np.float32)
    for i, heads in enumerate(c.kept_heads):
        gates[i, list(heads)] = 1
    return jnp.asarray(gates)


@slow
def test_pruned_network_equals_the_gated_one():
    """Its outputs, gradients by kept parameters, layers and attention; its specs have the shapes of what is kept."""
    c, text = CONFIGS["post"], REMOVED["uneven"]
    model, params = make(c)
    smaller, pruned = prune(c, text, params)
    other, _ = make(smaller)
    shapes = {path: spec.shape for path, spec in P.flatten(other.specs).items()}
    assert shapes == {path: value.shape for path, value in P.flatten(pruned).items()}
    assert P.count(model.specs) - P.count(other.specs) == 3 * (4 * 12 * 4 + 3 * 4)
    gates = gates_of(smaller)
    for options in ({}, {"at": AT}, {"causal": True}):
        np.testing.assert_allclose(run(other, pruned, **options), run(model, params, gates, **options), atol=1e-6)

    def grads(model, params, gates):
        return jax.jit(jax.grad(lambda p: (run(model, p, gates) * WEIGHTS).sum()))(params)

    _, expected = prune(c, text, grads(model, params, gates))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
                 grads(other, pruned, None), expected)
    inputs = Inputs(TOKENS, attention_mask=AttentionMask(SEGMENTS))
    a, b = (jax.jit(lambda params, gates, network=network: network.encode(
        params, inputs._replace(gates=gates), layers=True, attention=True))(*arguments)
        for network, arguments in ((other, (pruned, None)), (model, (params, gates))))
    np.testing.assert_allclose(a.layers, b.layers, atol=1e-6)
    np.testing.assert_allclose(a.attention, b.attention * gates[:, None, :, None, None], atol=1e-6)


@slow
@pytest.mark.parametrize("text", REMOVED.values())
def test_pruned_network_without_biases_equals_the_gated_one(text):
    c = CONFIGS["modern"]
    model, params = make(c)
    smaller, pruned = prune(c, text, params)
    np.testing.assert_allclose(run(make(smaller)[0], pruned), run(model, params, gates_of(smaller)), atol=1e-6)


def test_removing_heads_one_after_another_is_removing_them_at_once():
    c = CONFIGS["post"]
    _, params = make(c)
    once = prune(c, "0:1;2:0,2", params)[1]
    step, between = prune(c, "2:0", params)
    after = replace(c, pruned_heads="0:1;2:0,2")
    twice = pruned_heads.remove(between["layers"], step.kept_heads, after.kept_heads, c.head_width)
    jax.tree.map(np.testing.assert_array_equal, twice, once["layers"])


@slow
@pytest.mark.parametrize("text", REMOVED.values())
def test_gates_of_a_pruned_network_are_those_of_its_heads(text):
    c = CONFIGS["post"]
    model, params = make(c)
    smaller, pruned = prune(c, text, params)
    other, _ = make(smaller)
    gates = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)
    expected = run(model, params, gates * gates_of(smaller))
    np.testing.assert_allclose(run(other, pruned, gates), expected, atol=1e-5)
    by_gate = jax.jit(jax.grad(lambda gates: (run(other, pruned, gates) * WEIGHTS).sum()))(gates)
    assert not np.any(np.where(gates_of(smaller), 0, by_gate)) and np.any(by_gate)


@pytest.mark.parametrize("text", [REMOVED["uneven"], pytest.param(REMOVED["even"], marks=slow)])
def test_pruned_network_generates_as_it_encodes(text):
    c, params = prune(CONFIGS["pre"], text, make(CONFIGS["pre"])[1])
    model, _ = make(c)
    tokens = TOKENS[:1]
    mask = AttentionMask(jnp.ones_like(tokens), causal=True)
    expected = jax.jit(lambda params: model.encode(params, Inputs(tokens, attention_mask=mask)).hidden)(params)
    first, cache = jax.jit(model.state.decode)(params, tokens[:, :5], model.state.cache(params, 1, T))
    second, _ = jax.jit(model.state.decode)(params, tokens[:, 5:], cache)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), expected, atol=1e-5)


def test_layers_that_share_parameters_lose_the_same_heads():
    c = CONFIGS["shared"]
    _, params = make(c)
    smaller, pruned = prune(c, "0:1;1:1;2:1", params)
    model, _ = make(smaller)
    np.testing.assert_allclose(run(model, pruned), run(make(c)[0], params, gates_of(smaller)), atol=1e-6)
    with pytest.raises(UserError, match=r"layers share parameters .*remove the same heads from every layer"):
        transformer.build(replace(c, pruned_heads="0:1"))


def test_text_of_removed_heads_is_read_as_it_is_written():
    found = pruned_heads.parse(" 2:1, 0 ; 0:2;", 3, 3)
    assert found == {2: (0, 1), 0: (2,)} and pruned_heads.write(found | {1: ()}) == "0:2;2:0,1"
    assert pruned_heads.kept("0:2;2:0,1", 3, 3) == ((0, 1), (0, 1, 2), (2,))


def test_gated_model_passes_its_gates():
    model, params = make(CONFIGS["post"])
    gates = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)
    expected = run(model, params, gates)
    np.testing.assert_array_equal(run(with_gates(model, gates), params), expected)
    by_token = jnp.broadcast_to(gates[:, None], (3, B * T, 3))
    np.testing.assert_array_equal(run(with_gates(model, by_token), params), expected)
