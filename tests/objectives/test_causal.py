"""Causal language modelling: targets, loss, memory and decoding."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from scipy.special import log_softmax

from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import lm_head
from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.objectives import causal
from lmrep.objectives.base import Carry, Keys
from tests import reference
from tests.cases import slow_after

V, T = 37, 12
GPT2 = transformer.Config(vocab=V, width=16, layers=2, heads=4, mlp=32, max_length=T, token_types=0,
                          embedding_norm=False, norm="pre", norm_eps=1e-5, residual_init="scaled", position_stddev=0.01)
NETWORKS = {
    "gpt2": GPT2,
    "gpt": transformer.Config(vocab=V, width=16, layers=1, heads=2, mlp=24, max_length=T, token_types=0,
                              embedding_norm=False, norm_eps=1e-5),
    "gemma2": replace(GPT2, logit_cap=0.5),
    "gemma2_untied": replace(GPT2, logit_cap=0.5, tied=False),
    "albert": transformer.Config(vocab=V, width=16, embedding=8, layers=2, heads=2, mlp=24, max_length=T, share="all"),
}
VOCABULARY = Vocabulary(V, {"cls": 0, "sep": 1, "pad": 2}, np.ones(V, bool), np.arange(V))
RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1] * 12, [1] * 5 + [2] * 4 + [0] * 3, [1] * 1 + [0] * 11, [0] * 12], np.int32)
BATCH = {"tokens": RNG.integers(3, V, SEGMENTS.shape).astype(np.int32), "segment_ids": SEGMENTS,
         "positions": np.array([[*range(12)], [*range(5), *range(4), 0, 0, 0], [0] * 12, [0] * 12], np.int32),
         "example": np.arange(4, dtype=np.int32)}


def build(c=causal.Config(), network=GPT2):
    model = transformer.build(network)
    objective = causal.build(c, model, VOCABULARY)
    return model, objective, reference.random_params(objective.specs, seed=3)


def prepare(objective):
    return jax.jit(objective.prepare)(Keys(jax.random.split(jax.random.key(0), 4), jax.random.key(1)), BATCH)


def test_every_token_but_the_first_of_a_document_is_a_target_once():
    _, objective, _ = build()
    prepared = prepare(objective)
    weights = np.asarray(prepared["weights"])
    positions = {(b, t) for b, t in zip(*np.nonzero(weights), strict=True)}
    assert positions == {(0, t) for t in range(11)} | {(1, t) for t in (0, 1, 2, 3, 5, 6, 7)}
    assert weights.sum() == pytest.approx(1) and len(set(weights[weights > 0].tolist())) == 1
    for b, t in positions:
        assert prepared["targets"][b, t] == BATCH["tokens"][b, t + 1]


def test_across_documents_their_first_tokens_are_targets_too():
    _, objective, _ = build(causal.Config(across=True))
    assert np.flatnonzero(prepare(objective)["weights"][1]).tolist() == [*range(8)]


@pytest.mark.parametrize(("network", "head"), slow_after(1, [
    ("gpt", "transform"), ("gemma2", "table"), ("gpt2", "table"), ("albert", "transform"),
    ("gemma2_untied", "transform")]))
def test_the_loss_is_the_mean_of_log_probabilities(network, head):
    c = causal.Config(head=head)
    model, objective, params = build(c, NETWORKS[network])
    batch = prepare(objective)
    total, (metrics, carry) = jax.jit(lambda p: objective.loss(p, batch, None, Carry()))(params)
    inputs = Inputs(tokens=batch["tokens"], positions=batch["positions"],
                   attention_mask=AttentionMask(SEGMENTS, causal=True))
    logits = jax.jit(lambda p: objective.uses.next_token.logits(p, model.encode(p["encoder"], inputs).hidden))(params)
    log_probabilities = log_softmax(np.asarray(logits).astype(np.float64), -1)
    target_log_probability = np.take_along_axis(log_probabilities, np.asarray(batch["targets"])[..., None], -1)[..., 0]
    target_mask = np.asarray(batch["weights"]) > 0
    assert float(total) == pytest.approx(-target_log_probability[target_mask].mean(), rel=1e-5)
    assert float(metrics["lm_loss"][0]) == pytest.approx(-target_log_probability[target_mask].sum(), rel=1e-5)
    assert int(metrics["lm_accuracy"][0]) == (log_probabilities.argmax(-1) == batch["targets"])[target_mask].sum()
    assert int(metrics["lm_accuracy"][1]) == target_mask.sum() and carry == Carry()


@pytest.mark.parametrize("chunk_logits", [2**24, 100])
def test_capped_logits_have_the_gradients_of_their_formula(chunk_logits, monkeypatch):
    """In one chunk and in several; the logits without a cap are those of the same table."""
    monkeypatch.setattr(lm_head, "CHUNK_LOGITS", chunk_logits)
    cap, (_, plain, _) = NETWORKS["gemma2"].logit_cap, build()
    model, objective, params = build(network=NETWORKS["gemma2"])
    batch = prepare(objective)

    def formula(params):
        encoded = causal.encode(params, batch, model, causal.Config()).hidden
        y = cap * jnp.tanh(plain.uses.next_token.logits(params, encoded) / cap)
        return (cross_entropy(y, batch["targets"]) * batch["weights"]).sum()

    def loss(params):
        return objective.loss(params, batch, None, Carry())[0]

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
                 *(jax.jit(jax.value_and_grad(f))(params) for f in (loss, formula)))
    hidden = 5 * jnp.ones((1, 1, 16))
    logits = objective.uses.next_token.logits(params, hidden)
    np.testing.assert_allclose(logits, cap * np.tanh(plain.uses.next_token.logits(params, hidden) / cap), rtol=1e-5)
    assert np.abs(logits).max() <= cap
    likeliest = objective.uses.next_token.logits(params, causal.encode(params, batch, model, causal.Config()).hidden)
    metrics = objective.loss(params, batch | {"targets": likeliest.argmax(-1)}, None, Carry())[1][0]
    assert metrics["lm_accuracy"][0] == metrics["lm_accuracy"][1] > 0


def test_no_position_depends_on_a_later_one_nor_on_another_document():
    model, _, params = build()
    c = causal.Config()

    @jax.jit
    def derivative(x, t):
        """Of the output at (1, t), by the embedded tokens."""
        def f(table):
            moved = {**params["encoder"], "embedding": {**params["encoder"]["embedding"], "token": table}}
            return causal.encode({**params, "encoder": moved}, batch, model, c).hidden[1, t].sum()

        batch = {**BATCH, "tokens": x}
        return jax.grad(f)(params["encoder"]["embedding"]["token"])

    tokens = BATCH["tokens"].copy()
    tokens[1, :9] = np.arange(3, 12)  # each position its own embedding
    for t in (0, 3, 5, 8):
        visible = np.flatnonzero(np.abs(np.asarray(derivative(tokens, t))).sum(1)) - 3
        assert visible.tolist() == [*range(t + 1)] if t < 5 else visible.tolist() == [*range(5, t + 1)]


# --- the cross-entropy of all positions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "t", "v", "e", "with_bias"), slow_after(1, [
    (2, 7, 11, 4, True), (3, 32, 50, 8, False)]))
def test_the_chunked_cross_entropy_and_its_gradients_equal_the_plain_ones(monkeypatch, b, t, v, e, with_bias):
    monkeypatch.setattr(lm_head, "CHUNK_LOGITS", 1)
    rng = np.random.default_rng(1)
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in ((v, e), (b, t, e))]
    arguments += [np.abs(rng.standard_normal((b, t)).astype(np.float32)) * (rng.random((b, t)) < 0.7)]
    arguments += [rng.standard_normal(v).astype(np.float32)] * with_bias
    targets = rng.integers(0, v, (b, t)).astype(np.int32)

    def naive(table, x, weights, bias=0):
        return 3 * (cross_entropy(jnp.einsum("btd,vd->btv", x, table) + bias, targets) * weights).sum()

    def ours(table, x, weights, bias=None):
        return 3 * lm_head.chunked_cross_entropy(table, x, targets, weights, bias)[0]

    argnums = tuple(range(len(arguments)))
    expected, chunked = (jax.jit(jax.value_and_grad(f, argnums=argnums))(*arguments) for f in (naive, ours))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), expected, chunked)


def test_the_chunked_cross_entropy_of_gpt_2_needs_a_tenth_of_the_memory():
    """By the compiler's account of temporary memory, for 8 sequences of 1,024 positions, in float32."""
    b, t, v, e = 8, 1024, 50257, 768
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((v, e), (b, t, e), (b, t))]
    targets = jax.ShapeDtypeStruct((b, t), jnp.int32)

    def naive(table, x, weights, targets):
        return (cross_entropy(jnp.einsum("btd,vd->btv", x, table), targets) * weights).sum()

    def ours(table, x, weights, targets):
        return lm_head.chunked_cross_entropy(table, x, targets, weights)[0]

    def temporary(f):
        program = jax.jit(jax.grad(f, argnums=(0, 1))).lower(*shapes, targets).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary(ours) < 0.1 * temporary(naive)


# --- decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("network", ["gpt2", "albert"])
def test_decoding_with_a_cache_equals_encoding(network):
    model, _, params = build(network=NETWORKS[network])
    tokens = BATCH["tokens"]
    mask = AttentionMask(np.ones_like(tokens), causal=True)
    full = jax.jit(lambda p: model.encode(p, Inputs(tokens=tokens, attention_mask=mask)))(params["encoder"])
    cache, outputs = model.state.cache(params["encoder"], 4, T), []
    decode = jax.jit(model.state.decode)
    for size in (5, 1, 1, 1, 1, 1, 1, 1):
        at = int(cache.length)
        hidden, cache = decode(params["encoder"], tokens[:, at : at + size], cache)
        outputs.append(hidden)
    np.testing.assert_allclose(np.concatenate(outputs, 1), full.hidden, rtol=1e-4, atol=2e-5)
