"""Permutation language modelling: what a target depends on, its loss against other objectives, memory."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.models import layer_choice, transformer_xl
from lmrep.models.base import Factorization, model_inputs
from lmrep.objectives import causal, factorization, masked, permutation
from lmrep.objectives.base import Carry
from tests import reference
from tests.cases import slow_after
from tests.objectives.toys import CLS, MASK, SEP, SPECIALS, V, jitted, prepare

B, T, M = 4, 16, 8
XLNET = transformer_xl.Config(
    vocab=V, width=12, layers=1, heads=2, mlp=20, memory=M, reuse=-1, dropout=0.0, causal=False, segments=True,
    untie=True, scale_embedding=False, norm_eps=1e-12, activation="gelu_tanh")
VOCABULARY = Vocabulary(V, SPECIALS, np.arange(V) % 3 != 0, np.arange(V))
TEXTS = np.random.default_rng(0).integers(5, V, (B, 5 * T)).astype(np.int32)


def build(network=XLNET, **fields):
    model = transformer_xl.build(network)
    objective = permutation.build(permutation.Config(**{"k": 3.0} | fields), model, VOCABULARY)
    return model, jitted(objective), reference.random_params(objective.specs, seed=2)


def batch(tokens=None, **fields):
    """Examples as XLNet has them, which end in a separator and a classifier."""
    tokens = np.array(TEXTS[:, :T] if tokens is None else tokens)
    b, t = tokens.shape
    tokens[:, -2:] = SEP, CLS
    types = np.zeros((b, t), np.int32)
    types[:, -1] = 2
    return {"tokens": tokens, "segment_ids": np.ones((b, t), np.int32), "token_type_ids": types,
            "example": np.arange(b, dtype=np.int32), "reset": np.zeros(b, np.int32),
            "reversed": np.arange(b, dtype=np.int32) % 2, **fields}


def some_carry(model, b=B):
    rng = np.random.default_rng(5)
    return Carry(jax.tree.map(lambda x: jnp.asarray(
        np.ones(x.shape, np.int32) if x.dtype == jnp.int32 else rng.normal(size=x.shape).astype(np.float32)),
        model.state.carry(b)))


# What a target depends on


@pytest.mark.parametrize("fields", [{}, pytest.param({"spans": False, "k": 1.5}, marks=pytest.mark.slow),
                                    pytest.param({"block": 4}, marks=pytest.mark.slow)], ids=str)
def test_no_target_depends_on_itself_nor_on_what_comes_later_in_the_order(fields):
    """By the gradient of each target's loss with respect to the embedding of each position, over many orders: it is 0
    exactly where the order says so, through both streams, all layers and the memory."""
    orders, config = 24, replace(XLNET, layers=2)
    _, objective, params = build(config, **fields)
    tokens = np.arange(orders * T).reshape(orders, T) % (V - 5) + 5
    prepared = prepare(objective, batch(tokens))
    # A vocabulary with a token of its own at each position, so that a row of the table belongs to one position.
    shown = np.tile(np.arange(T, dtype=np.int32), (orders, 1))
    network = transformer_xl.build(replace(config, vocab=T))
    table = np.random.default_rng(1).normal(0, 0.3, (T, XLNET.width)).astype(np.float32)
    order = Factorization(prepared["revealed"], prepared["sees"])

    def outputs(tables):  # [b, m], a number for each target, that all of its vector decides
        def one(table, *example):
            own = {name: x[None] for name, x in zip(("tokens", "segment_ids", "token_type_ids", "reversed",
                                                     "predicted"), example[:5], strict=True)}
            encoder = params["encoder"] | {"embedding": {"token": table}}
            encoded = permutation.encode({"encoder": encoder}, own, Factorization(*(x[None] for x in example[5:7])),
                                         network, state=some_carry(network, 1).per_example)
            return (encoded.hidden[0] * jnp.arange(1, XLNET.width + 1)).sum(-1)

        return jax.vmap(one)(tables, shown, *(jnp.asarray(prepared[name]) for name in (
            "segment_ids", "token_type_ids", "reversed", "predicted")), *order)

    tables = jnp.tile(table, (orders, 1, 1))
    m = prepared["predicted"].shape[1]
    gradients = jax.jit(jax.vmap(lambda i: jax.grad(lambda x: outputs(x)[:, i].sum())(tables)))(jnp.arange(m))
    depends = np.abs(np.asarray(gradients)).max(-1).transpose(1, 0, 2) > 0  # [b, m, t]
    first = T // 2
    for i in range(orders):
        for j in np.flatnonzero(prepared["weights"][i] > 0):
            at = prepared["predicted"][i, j]
            expected = prepared["revealed"][i] < prepared["sees"][i][at]
            assert not expected[at] and not (at < first and expected[first:].any())
            np.testing.assert_array_equal(depends[i, j], expected)


@pytest.mark.slow
def test_the_loss_does_not_change_with_a_target_that_no_other_sees():
    """Through the whole objective: the last target in the order changes the loss of nothing but itself."""
    _, objective, params = build()
    raw = batch()
    prepared = prepare(objective, raw)
    loss = jax.jit(lambda batch: objective.loss(params, batch, None, Carry())[0])
    place = np.where(prepared["weights"] > 0, np.take_along_axis(prepared["revealed"], prepared["predicted"], 1), -1)
    last = place.argmax(1)
    at = np.take_along_axis(prepared["predicted"], last[:, None], 1)
    without = prepared["weights"].copy()
    np.put_along_axis(without, last[:, None], 0, 1)
    tokens = prepared["tokens"].copy()
    np.put_along_axis(tokens, at, 5 + (np.take_along_axis(tokens, at, 1) - 4) % (V - 5), 1)
    assert (tokens != prepared["tokens"]).sum() == B
    assert loss(prepared | {"tokens": tokens, "weights": without}) == loss(prepared | {"weights": without})


# Against other objectives


def left_to_right(model, objective, params, raw):
    """The loss of predicting all tokens but the first in their order."""
    order = factorization.left_to_right(jnp.asarray(raw["tokens"]))
    t = raw["tokens"].shape[1]
    predicted = np.broadcast_to(np.arange(1, t, dtype=np.int32), (len(raw["tokens"]), t - 1))
    targets = raw["tokens"][:, 1:]
    given = raw | {"revealed": order.revealed, "sees": order.sees, "predicted": predicted, "targets": targets,
                   "weights": np.full(targets.shape, 1 / targets.size, np.float32)}
    return objective.loss(params, given, None, Carry())


@pytest.mark.slow
def test_in_the_order_of_the_text_it_is_a_left_to_right_language_model():
    """The loss is that of the conditional probabilities which the network gives to the tokens of each prefix alone."""
    model, objective, params = build(replace(XLNET, memory=0))
    t = 6
    raw = batch(TEXTS[:, :t])
    total, (metrics, _) = jax.jit(partial(left_to_right, model, objective))(params, raw)
    bias = params["objective"]["permutation"]["bias"]
    nll = 0.0
    for end in range(1, t):
        prefix = {name: x[:, : end + 1] if x.ndim == 2 else x for name, x in raw.items()}
        order = factorization.left_to_right(jnp.asarray(prefix["tokens"]))
        at = np.full((B, 1), end, np.int32)
        hidden = jax.jit(lambda batch, order: permutation.encode(params, batch, order, model).hidden[:, 0])(
            prefix | {"predicted": at}, order)
        logits = hidden @ params["encoder"]["embedding"]["token"].T + bias
        nll -= jax.nn.log_softmax(logits)[np.arange(B), raw["tokens"][:, end]].sum()
    assert float(total) == pytest.approx(float(nll) / (B * (t - 1)), rel=1e-5)
    assert int(metrics["permutation_loss"][1]) == B * (t - 1)


def test_a_query_stream_that_starts_as_the_content_before_it_has_the_causal_loss():
    """With one layer, one token and no distances, both predict the next token alike: the query stream of a position and
    the content stream of the position before see the same keys, and start from the same vector."""
    network = replace(XLNET, memory=0, segments=False)
    model, objective, params = build(network)
    # All tokens of the text have the vector that queries start from, and no distance matters.
    p = jax.tree.map(np.asarray, params)
    p["encoder"]["embedding"]["token"] = p["encoder"]["embedding"]["token"].copy()
    p["encoder"]["embedding"]["token"][7] = p["encoder"]["query"]
    p["encoder"]["layers"]["attention"]["position"]["kernel"] = np.zeros_like(
        p["encoder"]["layers"]["attention"]["position"]["kernel"])
    raw = batch() | {"tokens": np.full((B, T), 7, np.int32)}
    raw.pop("token_type_ids")
    found, _ = left_to_right(model, objective, p, raw)
    other = causal.build(causal.Config(bias=True), model, VOCABULARY)
    expected, _ = jax.jit(other.loss)({"encoder": p["encoder"], "objective": {"causal": p["objective"]["permutation"]}},
                             prepare(other, raw), None, Carry())
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_without_targets_that_see_each_other_it_is_the_loss_of_filling_in_masks():
    """A single target sees all tokens but itself, as a mask does; `predict` and the score of a sentence agree."""
    _, objective, params = build(replace(XLNET, memory=0))
    raw = batch()
    raw.pop("reversed")
    alone = {name: x for name, x in raw.items() if name != "token_type_ids"}  # those of a single text are known
    at = np.array([[3], [0], [9], [13]], np.int32)
    hidden = np.arange(T) == at
    order = factorization.all_but(jnp.asarray(hidden))
    targets = np.take_along_axis(raw["tokens"], at, 1)
    given = raw | {"revealed": order.revealed, "sees": order.sees, "predicted": at, "targets": targets,
                   "weights": np.full((B, 1), 1 / B, np.float32)}
    total, _ = objective.loss(params, given, None, Carry())
    masks = alone | {"tokens": np.where(hidden, MASK, raw["tokens"]), "predicted": at, "targets": targets}
    found = jax.jit(objective.uses.scorings["pll"].log_probabilities)(params, masks)
    assert float(total) == pytest.approx(-float(found.mean()), rel=1e-6)
    best = objective.predict(params, masks, k=V)
    own = np.take_along_axis(np.asarray(best["probabilities"]), np.asarray(best["words"] == targets[..., None]).argmax(
        -1)[..., None], -1)
    np.testing.assert_allclose(np.log(own[..., 0]), found, rtol=1e-5)


@pytest.mark.slow
def test_scores_of_sentences():
    model, objective, params = build()
    text = batch()["tokens"][:1]
    words = np.array([[*range(T - 2), -1, -1]])
    assert list(objective.uses.scorings) == ["pll", "pll_word_l2r", "log_probability"]
    views = objective.uses.scorings["log_probability"].views(text, words)
    ones = np.ones_like(text)
    found = jax.jit(objective.uses.scorings["log_probability"].log_probabilities)(params, {
        "tokens": views.tokens, "segment_ids": ones, "predicted": views.predicted, "targets": views.targets})
    raw = {"tokens": text, "segment_ids": ones, "example": np.zeros(1, np.int32),
           "token_type_ids": np.where(text == CLS, 2, 0)}
    _, (metrics, _) = left_to_right(model, objective, params, raw)
    order = factorization.left_to_right(jnp.asarray(text))
    given = jax.jit(partial(permutation.log_probabilities, make_inputs=lambda batch: (batch, order), model=model))
    first = given(params, raw | {"predicted": np.array([[0, T - 2, T - 1]]), "targets": text[:, [0, T - 2, T - 1]]})
    expected = -float(metrics["permutation_loss"][0]) + float(first[0, 0] - first[0, 1] - first[0, 2])
    assert float(found.sum()) == pytest.approx(expected, rel=1e-5)


# Memory


def windows(texts, length=T):
    """Windows of the texts that start half of a window apart, as the format gives them; without special tokens."""
    b, total = texts.shape
    for start in range(0, total - length + 1, length // 2):
        tokens = texts[:, start : start + length]
        yield {"tokens": tokens, "segment_ids": np.ones_like(tokens), "example": np.arange(b, dtype=np.int32),
               "reset": np.full(b, start == 0, np.int32), "reversed": np.zeros(b, np.int32)}


def test_a_memory_gives_the_losses_of_one_long_text():
    """With one layer, what a window remembers are embeddings, so that the second part of a window has the loss that it
    has in a longer window, in which the text before it is given."""
    network = replace(XLNET, memory=T)
    _, objective, params = build(network)
    carry, losses = objective.carry(B), []
    for window in windows(TEXTS[:, : 2 * T]):
        prepared = prepare(objective, window)
        _, (metrics, carry) = objective.loss(params, prepared, None, carry)
        losses.append((prepared, float(metrics["permutation_loss"][0])))
    last, expected = losses[2]  # positions T to 2 T, after the memory of T tokens
    before = TEXTS[:, :T]
    long = {"tokens": np.concatenate([before, last["tokens"]], 1), "segment_ids": np.ones((B, 2 * T), np.int32),
            "example": last["example"], "predicted": last["predicted"] + T, "targets": last["targets"],
            "weights": last["weights"],
            "revealed": np.concatenate([np.full((B, T), -1, np.int32), last["revealed"]], 1),
            "sees": np.concatenate([np.zeros((B, T), np.int32), last["sees"]], 1)}
    _, (metrics, _) = objective.loss(params, long, None, Carry())
    assert expected == pytest.approx(float(metrics["permutation_loss"][0]), rel=1e-5)


@pytest.mark.parametrize("name", slow_after(1, ["permutation", "masked"]))
def test_what_is_remembered_does_not_depend_on_what_the_next_example_predicts(name):
    """The second half of a window is the first half of the next one."""
    model = transformer_xl.build(replace(XLNET, layers=2))
    objective = {"permutation": permutation, "masked": masked}[name]
    objective = objective.build(objective.Config(), model, VOCABULARY)
    params = reference.random_params(objective.specs, seed=2)
    prepared = prepare(objective, next(windows(TEXTS)))
    loss = jax.jit(lambda batch: objective.loss(params, batch, None, objective.carry(B))[1][1])
    field = "inputs" if name == "masked" else "tokens"
    other = prepared[field].copy()
    other[:, T // 2 :] = other[:, :3:-1][:, : T // 2]
    assert (other != prepared[field]).any()
    first, second = loss(prepared), loss(prepared | {field: other})
    jax.tree.map(np.testing.assert_array_equal, first.per_example, second.per_example)
    assert np.abs(first.per_example["layers"]["1"]).max() > 0


@pytest.mark.slow
def test_examples_that_continue_none_start_without_a_memory():
    model, objective, params = build()
    prepared = prepare(objective, batch(reset=np.ones(B, np.int32)))
    alone = {name: x for name, x in prepared.items() if name != "reset"}
    found, (_, after) = objective.loss(params, prepared, None, some_carry(model))
    expected, (_, none) = objective.loss(params, alone, None, some_carry(model))
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    assert int(after.per_example["filled"].sum()) == B * M
    jax.tree.map(np.testing.assert_array_equal, none, some_carry(model))  # not used, and kept
    continued, _ = objective.loss(params, prepared | {"reset": np.zeros(B, np.int32)}, None, some_carry(model))
    assert float(continued) != pytest.approx(float(expected), rel=1e-3)


def test_a_text_of_one_token_can_be_encoded():
    """Layers are counted by such a text."""
    model, _, params = build()
    inputs = model_inputs(model, {"tokens": jnp.full((1, 1), 7), "segment_ids": jnp.ones((1, 1), jnp.int32)})
    encoded = jax.eval_shape(partial(model.encode, layers=True), params["encoder"], inputs)
    assert layer_choice.num_layers(model) == len(encoded.layers) - 1


@pytest.mark.slow
def test_no_gradient_reaches_the_memory():
    model, objective, params = build()
    prepared = prepare(objective, batch())

    def total(layers):
        state = some_carry(model).per_example | {"layers": layers}
        loss, (_, carry) = objective.loss(params, prepared, None, Carry(state))
        return loss + sum(x.sum() for x in jax.tree.leaves(carry.per_example["layers"]))

    for x in jax.tree.leaves(jax.grad(total)(some_carry(model).per_example["layers"])):
        np.testing.assert_array_equal(x, 0)


# Next sentence, examples as text, messages


@pytest.mark.slow
def test_the_label_of_a_pair_is_predicted_from_the_content_stream_at_the_last_position():
    model, objective, params = build(sentence_pair=True)
    labels = np.array([0, 1, 1, 0], np.int32)
    prepared = prepare(objective, batch(pair_label=labels))
    total, (metrics, _) = objective.loss(params, prepared, None, objective.carry(B))
    order = Factorization(prepared["revealed"], prepared["sees"])
    content = jax.jit(lambda p: permutation.encode(p, prepared, order, model, layers=True).layers[-1][:, -1])(params)
    pair = params["objective"]["pair"]
    logits = reference.linear(pair["classifier"], np.tanh(reference.linear(pair["pooler"], content)))
    expected = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), labels[:, None], 1).sum()
    assert float(metrics["pair_loss"][0]) == pytest.approx(float(expected), rel=1e-5)
    parts = metrics["permutation_loss"][0] / metrics["permutation_loss"][1] + metrics["pair_loss"][0] / B
    assert float(total) == pytest.approx(float(parts), rel=1e-6)
    assert metrics.keys() == permutation.DEFINITION.metrics.keys()


def test_an_example_as_text_has_the_dependencies_of_the_paper():
    """"New York is a city", of which New and York are predicted, in this order (section 2.6)."""
    words = ["New", "York", "is", "a", "city", "<sep>", "<cls>"]
    tokenizer = SimpleNamespace(id_to_token=lambda i: words[i])
    example = {"tokens": np.arange(7)[None], "segment_ids": np.ones((1, 7), int), "predicted": np.array([[0, 1, 0]]),
               "weights": np.array([[0.5, 0.5, 0]]), "revealed": np.array([[2, 3, -1, -1, -1, 0, 9]]),
               "sees": np.array([[2, 3, 0, 0, 0, 1, 10]])}
    text, = permutation.describe(example, tokenizer, functional=[5, 6])
    assert text.split("\n") == [
        "{1 New} {2 York} is a city <sep> <cls>",
        "XLNet: log p(New | given, <sep>) + log p(York | given, New, <sep>)",
        "BERT:  log p(New | given) + log p(York | given)"]
