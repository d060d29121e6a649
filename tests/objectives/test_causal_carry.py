"""The state that causal language modelling carries from batch to batch under a recurrent network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.attention import AttentionMask
from lmrep.models import lstm, transformer
from lmrep.models.base import Inputs
from lmrep.objectives import causal
from lmrep.objectives.base import Carry, Keys
from tests import reference
from tests.cases import slow_after
from tests.objectives.toys import jitted

V, B, T, CHUNKS = 23, 4, 6, 5
VOCABULARY = Vocabulary(V, {"eos": 0, "pad": 1}, np.ones(V, bool), np.arange(V))
TEXTS = np.random.default_rng(0).integers(2, V, (B, CHUNKS * T)).astype(np.int32)
NETWORKS = {"lstm": lstm.Config(vocab=V, width=8, layers=2, embedding=6, dropout=0.0),
            "rnn": lstm.Config(vocab=V, width=8, layers=1, cell="rnn", tied=False, dropout=0.0)}


def build(network="lstm", **fields):
    model = lstm.build(NETWORKS[network])
    objective = causal.build(causal.Config(**fields), model, VOCABULARY)
    return model, jitted(objective), reference.random_params(objective.specs, seed=2)


def batches(texts, length):
    """The texts split into examples of `length` tokens, as the contiguous stream gives them."""
    b, total = texts.shape
    for start in range(0, total, length):
        end = start + length
        yield {"tokens": texts[:, start:end], "segment_ids": np.ones((b, length), np.int32),
               "example": np.arange(b, dtype=np.int32), "reset": np.full(b, start == 0, np.int32),
               "following": texts[:, end] if end < total else np.full(b, -1, np.int32)}


def prepare(objective, batch):
    return objective.prepare(Keys(jax.random.split(jax.random.key(0), len(batch["tokens"])), jax.random.key(1)), batch)


@pytest.mark.parametrize("network", ["lstm", pytest.param("rnn", marks=pytest.mark.slow)])
def test_split_texts_have_the_loss_of_unsplit_ones(network):
    _, objective, params = build(network)
    loss = jax.jit(lambda params, batch, carry: objective.loss(params, batch, None, carry)[1])
    carry, found, count = objective.carry(B), 0.0, 0
    for batch in batches(TEXTS, T):
        metrics, carry = loss(params, prepare(objective, batch), carry)
        found, count = found + float(metrics["lm_loss"][0]), count + int(metrics["lm_loss"][1])
    unsplit, = batches(TEXTS, CHUNKS * T)
    metrics, last = loss(params, prepare(objective, unsplit), objective.carry(B))
    assert count == int(metrics["lm_loss"][1]) == B * (CHUNKS * T - 1)  # every token but the first of each text
    assert found == pytest.approx(float(metrics["lm_loss"][0]), rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), carry, last)


def test_the_state_is_reset_where_an_example_continues_none():
    model, objective, _ = build()
    batch, = batches(TEXTS[:, :T], T)
    carry = jax.tree.map(lambda x: x + 0.5, objective.carry(B))
    batch["reset"] = np.array([1, 0, 1, 0], np.int32)
    state = causal.initial_state(jax.tree.map(jnp.asarray, batch), carry, model)
    for x in jax.tree.leaves(state):
        np.testing.assert_array_equal(x, np.array([0, 0.5, 0, 0.5])[:, None] * np.ones(8))


@pytest.mark.parametrize("missing", slow_after(1, ["reset", "carry"]))
def test_without_reset_or_a_carry_texts_start_from_the_initial_state(missing):
    _, objective, params = build()
    batch = prepare(objective, next(batches(TEXTS, T)))
    carry = Carry() if missing == "carry" else jax.tree.map(lambda x: x + 0.5, objective.carry(B))
    expected, _ = objective.loss(params, batch, None, objective.carry(B))
    found, (_, after) = objective.loss(params, {k: v for k, v in batch.items() if k != missing}, None, carry)
    assert float(found) == float(expected)
    assert jax.tree.structure(after) == jax.tree.structure(carry)
    jax.tree.map(np.testing.assert_array_equal, after, carry)


def test_no_gradient_reaches_the_previous_batch():
    model, objective, params = build()
    batch = prepare(objective, list(batches(TEXTS, T))[1])

    def loss(state):
        total, (_, carry) = objective.loss(params, batch, None, Carry(state))
        return total + sum(x.sum() for x in jax.tree.leaves(carry))

    for x in jax.tree.leaves(jax.grad(loss)(jax.tree.map(lambda x: x + 0.5, model.state.carry(B)))):
        np.testing.assert_array_equal(x, 0)


def test_a_negative_following_token_is_not_predicted():
    _, objective, _ = build()
    batch = next(batches(TEXTS, T)) | {"following": np.array([-1, 5, 7, -1], np.int32)}
    batch["segment_ids"][2, 4:] = 0
    found = prepare(objective, batch)
    assert (np.asarray(found["weights"][:, -1]) > 0).tolist() == [False, True, False, False]
    assert found["targets"][1, -1] == 5 and np.asarray(found["weights"]).sum() == pytest.approx(1)


def test_a_transformer_predicts_the_following_token_too_and_carries_nothing():
    model = transformer.build(transformer.Config(vocab=V, width=8, layers=1, heads=2, mlp=16, max_length=T))
    objective = jitted(causal.build(causal.Config(), model, VOCABULARY))
    params = reference.random_params(objective.specs, seed=2)
    batch = prepare(objective, next(batches(TEXTS, T)))
    assert objective.carry(B) == Carry()
    _, (metrics, carry) = objective.loss(params, batch, None, Carry())
    assert int(metrics["lm_loss"][1]) == B * T and carry == Carry()


@pytest.mark.parametrize("head", ["table", pytest.param("transform", marks=pytest.mark.slow)])
def test_packed_texts_have_the_loss_of_texts_alone(head):
    _, objective, params = build(head=head)
    bounds = [(0, 9), (9, 11), (11, 26)]
    packed, alone = np.zeros((1, 30), np.int32), []
    for number, (start, end) in enumerate(bounds, 1):
        packed[0, start:end] = number
        alone.append((np.roll(TEXTS[:1], -start, 1), (np.arange(30) < end - start).astype(np.int32)[None]))

    @jax.jit
    def nll(tokens, segment_ids):
        batch = prepare(objective, {"tokens": tokens, "segment_ids": segment_ids, "example": jnp.zeros(1, jnp.int32)})
        return objective.loss(params, batch, None, Carry())[1][0]["lm_loss"][0]

    assert float(nll(TEXTS[:1], packed)) == pytest.approx(sum(float(nll(*text)) for text in alone), rel=1e-6)


@pytest.mark.slow
def test_a_mask_is_made_for_a_network_that_reads_from_left_to_right():
    model, objective, params = build()
    batch = prepare(objective, next(batches(TEXTS, T)))
    mask = AttentionMask(jnp.ones((B, T), jnp.int32), causal=True)
    expected = model.encode(params["encoder"], Inputs(tokens=batch["tokens"], attention_mask=mask)).hidden
    np.testing.assert_array_equal(causal.encode(params, batch, model, causal.Config()).hidden, expected)
