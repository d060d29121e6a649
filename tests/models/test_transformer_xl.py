"""Transformer-XL and XLNet against a reference that sums over queries and keys one at a time, and their properties."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer_xl
from lmrep.models.base import Factorization, Inputs
from tests import reference

slow = pytest.mark.slow
V, B, T, M = 31, 3, 7, 5
XL = transformer_xl.Config(vocab=V, width=12, layers=2, heads=2, mlp=20, memory=M, dropout=0.0)
XLNET = replace(XL, causal=False, segments=True, untie=True, scale_embedding=False, norm_eps=1e-12,
                activation="gelu_tanh")
CONFIGS = {
    "transformer_xl": XL, "xlnet": XLNET, "pre_norm": replace(XL, norm="pre", untie=True),
    "same_length": replace(XL, same_length=True, clamp=3), "clamped": replace(XLNET, clamp=2, untie=False),
    "reused": replace(XLNET, reuse=4, memory=6),
}
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, V, (B, T)).astype(np.int32)
TYPES = RNG.integers(0, 3, (B, T)).astype(np.int32)
SEGMENTS = np.array([[1] * T, [1] * 4 + [0] * 3, [1, 1, 2, 2, 2, 3, 0]], np.int32)
AT = np.array([[1, 6], [3, 0], [2, 2]], np.int32)


@functools.cache
def network(config, seed=1, **changes):
    model = transformer_xl.build(config, **changes)
    return model, reference.random_params(model.specs, seed)


def order(seed=0):
    """Half of the tokens are predicted, in random orders."""
    rng = np.random.default_rng(seed)
    places = np.stack([rng.permutation(T) for _ in range(B)])
    predicted = rng.random((B, T)) < 0.5
    revealed = np.where(predicted, places, -1)
    return Factorization(jnp.asarray(revealed, jnp.int32), jnp.asarray(np.where(predicted, places, 0), jnp.int32))


@functools.cache
def program(encode, causal, **options):
    return jax.jit(lambda params, tokens, segments, fields, at: encode(
        params, Inputs(tokens, attention_mask=AttentionMask(segments, causal), **fields), at=at, **options))


def encode(model, params, tokens=TOKENS, segments=SEGMENTS, causal=None, at=None, layers=False, attention=False,
           **fields):
    causal = "both" not in model.conditions_on if causal is None else causal
    return program(model.encode, causal, layers=layers, attention=attention)(
        params, tokens, segments, fields, at)


def close(computed, expected, atol=2e-5):
    np.testing.assert_allclose(computed, expected, rtol=0, atol=atol)


# --- the equations


def sinusoid(p, d):
    angles = [p / 10000 ** (2 * i / d) for i in range(d // 2)]
    return np.array([np.sin(a) for a in angles] + [np.cos(a) for a in angles])


def expected_encoding(c, params, memory, segments=SEGMENTS, causal=True, types=None, turned=None, factorization=None):
    """(layers of the content stream [l + 1, b, t, d], query stream [b, t, d], probabilities [l, b, h, t, memory + t])
    by the papers' equations. `memory` is (layers [l][b][i, d], filled [b, i])."""
    p, d, heads, k = reference.float64(params), c.width, c.heads, c.width // c.heads
    layers, filled = memory
    m = len(filled[0])
    h = p["embedding"]["token"][TOKENS] * (np.sqrt(d) if c.scale_embedding else 1)
    g = None if c.causal else np.broadcast_to(p["query"], h.shape)
    outputs, all_probabilities = [h], np.zeros((c.layers, B, heads, T, m + T))

    def visible(b, i, j, stream):
        if j < m:
            seen = filled[b][j] and segments[b, i] == segments[b, 0] != 0
        elif factorization is not None:
            seen = factorization.revealed[b, j - m] < factorization.sees[b, i] or (stream == "h" and i == j - m)
        else:
            seen = not causal or j - m <= i
        if j >= m:
            seen = seen and segments[b, i] == segments[b, j - m]
        return seen and not (c.same_length and m + i - j >= c.memory)

    def layer(number, b, x, source, stream):
        own = jax.tree.map(lambda leaf: leaf[number], p["layers"])
        biases, attention = own["attention"] if c.untie else p["biases"], own["attention"]
        pre = c.norm == "pre"
        norm = lambda name, y: reference.layer_norm(own[name], y, c.norm_eps)  # noqa: E731
        source, queries = (norm("attention_norm", y) if pre else y for y in (source, x))
        q, keys, values = (y @ attention[name]["kernel"]
                           for name, y in (("query", queries), ("key", source), ("value", source)))
        mixed = np.zeros_like(x)
        for head in range(heads):
            own_part = slice(head * k, (head + 1) * k)
            for i in range(T):
                seen = [j for j in range(m + T) if visible(b, i, j, stream)]
                logits = []
                for j in seen:
                    distance = m + i - j
                    distance = np.clip(distance, -c.clamp, c.clamp) if c.clamp else distance
                    distance = -distance if turned is not None and turned[b] else distance
                    r = sinusoid(distance, d) @ attention["position"]["kernel"]
                    logit = (q[i, own_part] + biases["content_bias"][head]) @ keys[j, own_part]
                    logit += (q[i, own_part] + biases["position_bias"][head]) @ r[own_part]
                    if types is not None:
                        different = int(types[b, i] != (types[b, j - m] if j >= m else 0))
                        logit += ((q[i, own_part] + biases["segment_bias"][head])
                                  @ attention["segment"][different, head])
                    logits.append(logit / np.sqrt(k))
                if seen:
                    weights = np.exp(np.array(logits) - max(logits))
                    weights /= weights.sum()
                    mixed[i, own_part] = sum(w * values[j, own_part] for w, j in zip(weights, seen, strict=True))
                    if stream == "h":
                        all_probabilities[number, b, head, i, seen] = weights
        x = x + mixed @ attention["output"]["kernel"]
        x = x if pre else norm("attention_norm", x)
        y = norm("mlp_norm", x) if pre else x
        y = reference.linear(own["mlp"]["out"], reference.ACTIVATIONS[c.activation](
            reference.linear(own["mlp"]["in"], y)))
        return x + y if pre else norm("mlp_norm", x + y)

    for number in range(c.layers):
        sources = [np.concatenate([layers[number][b], h[b]]) for b in range(B)]
        if g is not None:
            g = np.stack([layer(number, b, g[b], sources[b], "g") for b in range(B)])
        h = np.stack([layer(number, b, h[b], sources[b], "h") for b in range(B)])
        outputs.append(h)
    if c.norm == "pre":
        h, g = (y if y is None else reference.layer_norm(p["final_norm"], y, c.norm_eps) for y in (h, g))
    return outputs, h, g, all_probabilities


NO_MEMORY = ([[np.zeros((0, 12))] * B] * 2, [[]] * B)


def some_memory(c, seed=3):
    """(the carry, the same for the reference): the first example has a full memory, the second none."""
    rng = np.random.default_rng(seed)
    filled = np.array([[1] * c.memory, [0] * c.memory, [0] * (c.memory - 3) + [1] * 3], np.int32)
    layers = rng.normal(size=(c.layers, B, c.memory, c.width)).astype(np.float32)
    return {"layers": {str(i): jnp.asarray(x) for i, x in enumerate(layers)}, "filled": jnp.asarray(filled)}, (
        layers.astype(np.float64), filled)


@pytest.mark.parametrize(("name", "remembers"), [
    ("transformer_xl", True), *(pytest.param(name, remembers, marks=slow) for name, remembers in (
        ("same_length", True), ("pre_norm", False), ("xlnet", True), ("clamped", False), ("reused", True)))])
def test_outputs_equal_the_published_equations(name, remembers):
    c = CONFIGS[name]
    model, params = network(c)
    carry, memory = some_memory(c) if remembers else (None, NO_MEMORY)
    encoded = encode(model, params, layers=True, attention=True, causal=True, carry=carry)
    outputs, hidden, _, probabilities = expected_encoding(c, params, memory)
    close(encoded.layers, outputs)
    close(encoded.hidden, hidden)
    close(encoded.attention, probabilities)
    close(encode(model, params, at=AT, causal=True, carry=carry).hidden, np.take_along_axis(hidden, AT[..., None], 1))


@pytest.mark.parametrize(("name", "remembers"), [
    ("clamped", True), pytest.param("xlnet", False, marks=slow), pytest.param("xlnet", True, marks=slow),
    pytest.param("reused", True, marks=slow)])
def test_both_streams_equal_the_published_equations(name, remembers):
    c = CONFIGS[name]
    model, params = network(c)
    carry, memory = some_memory(c) if remembers else (None, NO_MEMORY)
    turned = np.array([0, 1, 1], np.int32)
    options = {"carry": carry, "token_type_ids": jnp.asarray(TYPES), "reversed": jnp.asarray(turned),
               "factorization": order(), "layers": True, "attention": True}
    outputs, _, query, probabilities = expected_encoding(
        c, params, memory, types=TYPES, turned=turned, factorization=order())
    encoded = encode(model, params, **options)
    close(encoded.layers, outputs)
    close(encoded.attention, probabilities)
    close(encoded.hidden, query)
    chosen = encode(model, params, **options | {"layers": False, "attention": False}, at=AT)
    close(chosen.hidden, np.take_along_axis(query, AT[..., None], 1))
    jax.tree.map(close, chosen.carry, encoded.carry)
    both = encode(model, params, **options | {"factorization": None}, causal=False)
    close(both.hidden, expected_encoding(c, params, memory, causal=False, types=TYPES, turned=turned)[1])
