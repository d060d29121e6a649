"""Transformer-XL continues texts token by token as it reads them with its memory."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.inference import generate
from lmrep.inference.run import Run
from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer_xl
from lmrep.models.base import Factorization, Inputs, State
from lmrep.models.decoding import Sampling
from lmrep.objectives import causal, permutation
from tests import reference
from tests.cases import slow_after
from tests.programs import products

slow = pytest.mark.slow
V, B, T = 31, 2, 11
BASE = transformer_xl.Config(vocab=V, width=12, layers=2, heads=2, mlp=20, dropout=0.0)
CONFIGS = {
    "memory": replace(BASE, memory=4), "longer than the text": replace(BASE, memory=30), "no memory": BASE,
    "same length, clamped": replace(BASE, memory=5, same_length=True, clamp=3),
    "pre norm": replace(BASE, memory=4, norm="pre", untie=True),
    "adaptive": replace(BASE, memory=4, cutoffs=(8, 20), div=2, tied_projections="tails"),
    "xlnet": replace(BASE, memory=6, causal=False, segments=True, untie=True, scale_embedding=False),
    "xlnet without memory": replace(BASE, causal=False, segments=True, untie=True, clamp=4),
}
TOKENS = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)


def network(name, **changes):
    model = transformer_xl.build(CONFIGS[name], **changes)
    return model, reference.random_params(model.specs, seed=1)


def decoded(model, params, sizes, padding=0, capacity=T, **options):
    """The outputs where the text is read in calls of these sizes, the first with padding after its tokens."""
    cache, outputs, start = model.state.cache(params, B, capacity), [], 0
    decode = jax.jit(partial(model.state.decode, **options))
    for i, size in enumerate(sizes):
        tokens = TOKENS[:, start : start + size]
        if i == 0 and padding:
            tokens = np.pad(tokens, ((0, 0), (0, padding)), constant_values=3)
        hidden, cache = decode(params, jnp.asarray(tokens), cache, jnp.int32(size))
        outputs.append(hidden[:, :size])
        start += size
    assert int(cache.length) == start
    return np.concatenate(outputs, 1)


def read_one_by_one(model, params):
    """The outputs where each token is an example that continues from the memory of those before."""
    carry, outputs, mask = model.state.carry(B), [], AttentionMask(jnp.ones((B, 1), jnp.int32), causal=True)
    encode = jax.jit(lambda tokens, carry: model.encode(params, Inputs(tokens, attention_mask=mask, carry=carry)))
    for i in range(T):
        encoded = encode(jnp.asarray(TOKENS[:, i : i + 1]), carry)
        carry = encoded.carry
        outputs.append(encoded.hidden)
    return np.concatenate(outputs, 1)


@pytest.mark.parametrize("name", slow_after(1, ["xlnet", "same length, clamped", "no memory", "pre norm", "adaptive"]))
def test_a_cached_token_is_the_same_as_one_read_with_the_memory(name):
    model, params = network(name)
    if CONFIGS[name].memory:
        expected = read_one_by_one(model, params)
    else:
        mask = AttentionMask(jnp.ones((B, T), jnp.int32), causal=True)
        expected = jax.jit(lambda p: model.encode(p, Inputs(jnp.asarray(TOKENS), attention_mask=mask)).hidden)(params)
    np.testing.assert_allclose(decoded(model, params, [T]), expected, atol=2e-5)
    np.testing.assert_allclose(decoded(model, params, [6, 1, 3, 1], padding=4), expected, atol=2e-5)


@slow
@pytest.mark.parametrize(("name", "sizes"), [
    ("xlnet without memory", [6, 1, 3, 1]), ("xlnet", [6, 1, 3, 1])], ids=str)
def test_the_query_stream_is_at_the_position_after_each_token(name, sizes):
    model, params = network(name)
    found = decoded(model, params, sizes, padding=4, query=True)
    order = jnp.broadcast_to(jnp.arange(T), (B, T))
    if name == "xlnet without memory":
        inputs = Inputs(jnp.asarray(TOKENS), factorization=Factorization(order, order))
        expected = jax.jit(model.encode)(params, inputs).hidden[:, 1:]
    else:
        carry, expected, encode = model.state.carry(B), [], jax.jit(model.encode)
        for i in range(T):  # its own token is not read
            inputs = Inputs(jnp.asarray(TOKENS[:, i : i + 1]), carry=carry,
                            factorization=Factorization(order[:, :1], order[:, :1]))
            encoded = encode(params, inputs)
            carry = encoded.carry
            expected.append(encoded.hidden)
        expected = np.concatenate(expected[1:], 1)
    np.testing.assert_allclose(found[:, :-1], expected, atol=2e-5)
    np.testing.assert_allclose(decoded(model, params, sizes)[:, 0], decoded(model, params, [T])[:, 0], atol=2e-5)


@pytest.mark.slow
def test_a_memory_longer_than_the_text_is_attention_to_all_of_it():
    model, params = network("longer than the text")
    whole = jax.jit(model.encode)(params, Inputs(jnp.asarray(TOKENS))).hidden
    np.testing.assert_allclose(decoded(model, params, [5, *[1] * 6]), whole, atol=2e-5)


@pytest.mark.parametrize(("name", "length", "expected"), [
    ("memory", 100, 4), ("no memory", 100, 100), ("longer than the text", 10, 10)])
def test_the_cache_is_no_longer_than_the_memory_or_the_text(name, length, expected):
    model, params = network(name)
    cache = jax.eval_shape(lambda params: model.state.cache(params, B, length), params)
    assert cache.keys.shape == (2, B, expected, 2, 6)


def test_a_step_of_one_token_multiplies_no_positions():
    """Those are distances x d^2 products of each layer; the cache has their keys."""
    model, params = network("memory")
    cache = model.state.cache(params, B, T)
    one = jnp.asarray(TOKENS[:, :1])
    shapes = [each.invars[0].aval.shape for each in products(model.state.decode, params, one, cache)]
    assert shapes and not any(shape[:1] == cache.positions.shape[1:2] and len(shape) == 2 for shape in shapes)


@slow
@pytest.mark.parametrize(("name", "objective"), [("xlnet without memory", permutation), ("adaptive", causal)],
                         ids=["permutation", "transformer_xl"])
def test_the_most_probable_continuation_is_that_of_the_network_without_a_cache(name, objective):
    c = replace(CONFIGS[name], memory=0)
    model = transformer_xl.build(c)
    vocabulary = Vocabulary(V, {"mask": 4}, np.ones(V, bool), np.ones(V, np.int64))
    built = objective.build(objective.Config(), model, vocabulary)
    params = reference.random_params(built.specs, seed=3)
    text = TOKENS[:, :5]
    found = generate.generate(params, jnp.asarray(np.pad(text, ((0, 0), (0, 3)))), jnp.int32(5), jax.random.key(0),
                              model=model, objective=built, sampling=Sampling(temperature=0), tokens=4, capacity=12)

    @jax.jit
    def next_logits(tokens):
        """Of the token after all of `tokens`."""
        if objective is permutation:
            order = jnp.broadcast_to(jnp.arange(tokens.shape[1] + 1), (B, tokens.shape[1] + 1))
            inputs = Inputs(jnp.pad(tokens, ((0, 0), (0, 1))), factorization=Factorization(order, order))
            return permutation.token_logits(params, model.encode(params["encoder"], inputs).hidden, model=model)[:, -1]
        mask = AttentionMask(jnp.ones_like(tokens), causal=True)
        hidden = model.encode(params["encoder"], Inputs(tokens, attention_mask=mask)).hidden
        return built.uses.next_token.logits(params, hidden)[:, -1]

    for i in range(2):
        chosen = next_logits(jnp.asarray(text)).argmax(-1)
        np.testing.assert_array_equal(found[:, i], chosen)
        text = np.concatenate([text, np.asarray(chosen)[:, None]], 1)


def test_a_network_without_a_cache_says_so():
    run = object.__new__(Run)
    object.__setattr__(run, "model", transformer_xl.build(BASE)._replace(state=State()))
    with pytest.raises(UserError, match=r"cannot continue a text token by token"):
        run.generate_tokens([1], None, 0, "a text")
