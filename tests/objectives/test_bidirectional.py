"""Language modelling in both directions: targets, losses, the carried states, scores of sentences."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep import optimizers
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import bilstm
from lmrep.models.base import Inputs
from lmrep.objectives import bidirectional
from lmrep.objectives.base import Keys
from lmrep.training.state import create
from lmrep.training.step import train_step
from tests import reference
from tests.objectives.toys import jitted

V, B, T, CHUNKS = 40, 4, 5, 6
START, END, UNK = 0, 1, 2
VOCABULARY = Vocabulary(V, {"bos": START, "eos": END, "unk": UNK}, np.ones(V, bool), np.arange(V)[::-1])
NETWORK = bilstm.Config(vocab=V, reads="words", layers=1, cell=10, width=8, dropout=0.0)
CHARACTERS = bilstm.Config(vocab=V, layers=1, cell=10, width=8, filters=(4, 6), highways=1, dropout=0.0)


def stream(seed, start, length):
    """A stream of sentences, each after its mark: i32[length]."""
    rng, found = np.random.default_rng(seed), []
    while len(found) < length:
        found += [start, *rng.integers(UNK, V, rng.integers(1, 7))]
    return np.array(found[:length], np.int32)


STREAMS = [np.stack([stream(10 * number + i, mark, CHUNKS * T + 1) for i in range(16)])
           for number, mark in enumerate((START, END))]


def characters(tokens):
    """Each word has its own: i32[b, t, 4]."""
    return np.where(tokens[..., None] >= 0, 1 + (tokens[..., None] * np.array([1, 3, 7, 11])) % 40, 0).astype(np.int32)


def batches(number=B, length=T, read=False):
    """Batches of the streams, each continuing the one before."""
    for begin in range(0, CHUNKS * T, length):
        texts = []
        for streams in STREAMS:
            tokens = streams[:number, begin : begin + length]
            texts.append({"tokens": tokens, "segment_ids": np.ones_like(tokens),
                          "following": streams[:number, begin + length],
                          "reset": np.full(number, begin == 0, np.int32)}
                         | ({"characters": characters(tokens)} if read else {}))
        yield {"example": np.arange(number, dtype=np.int32), **texts[0], "backward": texts[1]}


def build(network=NETWORK, **fields):
    model = bilstm.build(network)
    objective = bidirectional.build(bidirectional.Config(**{"negatives": 0} | fields), model, VOCABULARY)
    return model, jitted(objective), reference.random_params(objective.specs, seed=2)


def prepare(objective, batch, seed=0):
    keys = Keys(jax.random.split(jax.random.key(seed), len(batch["tokens"])), jax.random.key(seed + 1))
    return jax.tree.map(jnp.asarray, objective.prepare(keys, jax.tree.map(jnp.asarray, batch)))


def test_targets_are_the_next_words_and_the_end_of_a_sentence_where_another_begins():
    _, objective, _ = build()
    tokens = np.array([[START, 7, 8, START, 9], [8, START, 5, START, 4]], np.int32)
    backward = np.array([[END, 9, END, 8, 7], [6, 5, END, 4, 3]], np.int32)
    ones, zero = np.ones_like(tokens), np.zeros(2, np.int32)
    found = prepare(objective, {
        "example": np.arange(2), "tokens": tokens, "segment_ids": ones, "following": np.array([START, -1]),
        "reset": zero, "backward": {
            "tokens": backward, "segment_ids": ones, "reset": zero, "following": np.array([6, END])}})
    assert (found["targets"] * (found["weights"] > 0)).tolist() == [[7, 8, END, 9, END], [END, 5, END, 4, 0]]
    assert found["backward"]["targets"].tolist() == [[9, START, 8, 7, 6], [5, START, 4, 3, START]]
    assert (found["weights"] > 0).tolist() == [[True] * 5, [True] * 4 + [False]]
    assert found["weights"].sum() == pytest.approx(0.5) and found["backward"]["weights"].sum() == pytest.approx(0.5)


def test_evaluation_has_the_mean_cross_entropies_of_each_direction_under_the_full_softmax():
    model, objective, params = build(negatives=7)
    batch = prepare(objective, next(batches()))
    total, (metrics, _) = objective.loss(params, batch, None, objective.carry(B))
    hidden = jax.jit(model.encode)(params["encoder"], Inputs(
        tokens=batch["tokens"], backward=Inputs(tokens=batch["backward"]["tokens"]))).hidden
    head = params["objective"]["bidirectional"]
    found = {}
    for name, text, x in zip(("forward", "backward"), (batch, batch["backward"]), np.split(np.asarray(hidden), 2, -1),
                             strict=True):
        logits = x @ head["output"].T + head["bias"]
        found[name] = -np.take_along_axis(
            log_softmax(logits, axis=-1), np.asarray(text["targets"])[..., None], -1).mean()
        assert float(metrics[f"{name}_loss"][0] / metrics[f"{name}_loss"][1]) == pytest.approx(found[name], rel=1e-5)
    mean = (found["forward"] + found["backward"]) / 2
    assert float(total) == pytest.approx(mean, rel=1e-5) == float(metrics["lm_loss"][0] / metrics["lm_loss"][1])
    assert metrics.keys() <= bidirectional.DEFINITION.metrics.keys()
    assert sum(weight * found[name.removesuffix("_loss")] for name, weight in objective.terms.items()) == pytest.approx(
        mean)


@pytest.mark.slow
def test_training_samples_and_its_gradient_is_on_average_near_that_of_the_full_softmax():
    _, full, params = build()
    _, objective, _ = build(negatives=24)
    batch = jax.tree.map(jnp.asarray, next(batches()))

    @jax.jit
    def gradient(seed):
        prepared = objective.prepare(Keys(jax.random.split(jax.random.key(0), B), jax.random.key(seed)), batch)
        return jax.grad(lambda p: objective.loss(p, prepared, jax.random.key(0), objective.carry(B)), has_aux=True)(
            params)

    prepared = prepare(full, batch)
    expected = jax.jit(jax.grad(lambda p: full.loss(p, prepared, jax.random.key(0), full.carry(B))[0]))(params)
    found, (metrics, _) = jax.jit(jax.vmap(gradient))(jnp.arange(100))
    assert metrics.keys() == {"sampled_forward_loss", "sampled_backward_loss"}

    def length(x):
        return np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(x)))

    one, mean = (jax.tree.map(lambda g, x, n=n: np.asarray(g[:n]).mean(0) - x, found, expected) for n in (1, 100))
    assert 2 * length(mean) < length(one) < length(expected) and length(mean) < 0.15 * length(expected)


def test_as_many_negatives_as_words_make_the_full_softmax():
    _, objective, _ = build(negatives=V)
    assert "shared" not in prepare(objective, next(batches()))


@pytest.mark.slow
@pytest.mark.parametrize("network", [NETWORK, CHARACTERS], ids=lambda c: c.reads)
def test_split_streams_have_the_loss_of_unsplit_ones(network):
    _, objective, params = build(network)
    loss = jax.jit(lambda params, batch, carry: objective.loss(params, batch, None, carry)[1])

    def run(length):
        carry, sums = objective.carry(B), np.zeros(2)
        for batch in batches(length=length, read=True):
            metrics, carry = loss(params, prepare(objective, batch), carry)
            sums += [float(metrics[name][0]) for name in ("forward_loss", "backward_loss")]
        return sums, carry

    (found, carry), (expected, last) = run(T), run(CHUNKS * T)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), carry, last)


def test_each_direction_is_reset_by_its_own_field():
    model, objective, _ = build()
    carry = jax.tree.map(lambda x: x + 0.5, objective.carry(B))
    batch = {"reset": jnp.array([1, 0, 1, 0]), "backward": {"reset": jnp.array([0, 0, 1, 1])}}
    state = bidirectional.initial_state(batch, carry, model)
    for name, expected in (("forward", [0, 0.5, 0, 0.5]), ("backward", [0.5, 0.5, 0, 0])):
        for x in jax.tree.leaves(state[name]):
            np.testing.assert_array_equal(x, np.array(expected)[:, None] * np.ones(x.shape[1]))


@pytest.mark.slow
def test_a_skipped_update_resets_the_states_of_both_directions():
    _, objective, _ = build(negatives=7)
    optimizer = optimizers.build(optimizers.sgd.Config("sgd"), objective.specs, 5)
    state = create(objective, optimizer, B, 0)
    state = state.replace(carry=jax.tree.map(lambda x: x + 0.5, state.carry))
    step = jax.jit(lambda state, batch, limit: train_step(
        state, batch, limit, objective=objective, optimizer=optimizer, seed=0))
    batch = list(batches())[1]
    applied, _ = step(state, batch, jnp.float32(1e9))
    skipped, _ = step(state, batch, jnp.float32(0))
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(applied.carry))
    assert all(np.abs(x).max() == 0 for x in jax.tree.leaves(skipped.carry))
    jax.tree.map(np.testing.assert_array_equal, skipped.params, state.params)


def test_a_forward_network_has_one_direction():
    network = bilstm.Config(**vars(NETWORK) | {"directions": "forward"})
    _, objective, params = build(network)
    batch = prepare(objective, {name: x for name, x in next(batches()).items() if name != "backward"})
    total, (metrics, carry) = objective.loss(params, batch, None, objective.carry(B))
    assert "backward_loss" not in metrics and set(carry.per_example) == {"forward"}
    assert float(total) == pytest.approx(float(metrics["forward_loss"][0] / metrics["forward_loss"][1]), rel=1e-6)
    assert objective.terms == {"forward_loss": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("directions", ["both", "forward"])
def test_the_score_of_a_sentence_is_the_sum_of_log_probabilities_of_its_directions(directions):
    """Each direction alone, as if its words were a batch of a stream."""
    _, objective, params = build(bilstm.Config(**vars(NETWORK) | {"directions": directions}))
    text = np.array([[START, 7, 8, 9, END]], np.int32)
    scored = objective.uses.scorings["log_probability"]
    views = scored.views(text, np.array([[-1, 0, 1, 2, -1]]))
    pad = np.array([[0, 0]])
    found = jax.jit(scored.log_probabilities)(params, {
        "tokens": np.concatenate([views.tokens, pad], 1), "segment_ids": np.array([[1] * 5 + [0] * 2]),
        "predicted": np.concatenate([views.predicted, pad], 1), "targets": np.concatenate([views.targets, pad], 1)})
    ones = np.ones((1, 4), np.int32)
    batch = prepare(objective, {
        "example": np.zeros(1, np.int32), "tokens": text[:, :-1], "segment_ids": ones, "following": np.array([START]),
        "reset": np.ones(1), "backward": {
            "tokens": text[:, :0:-1], "segment_ids": ones, "following": np.array([END]), "reset": np.ones(1)}})
    _, (metrics, _) = objective.loss(params, batch, None, objective.carry(1))
    expected = sum(float(metrics[name][0]) for name in objective.terms)
    assert -float(found[:, : views.predicted.shape[1]].sum()) == pytest.approx(expected, rel=1e-5)


def test_an_example_as_text_shows_both_directions():
    _, objective, _ = build()
    tokenizer = SimpleNamespace(id_to_token=lambda i: {START: "<S>", END: "</S>"}.get(i, f"w{i}"))
    rest = {"segment_ids": np.ones((1, 4), int), "reset": np.ones(1, int)}
    batch = {"example": np.zeros(1), "tokens": np.array([[START, 7, START, 8]]), "following": np.array([9]), **rest,
             "backward": {"tokens": np.array([[8, END, 7, 6]]), "following": np.array([END]), **rest}}
    text, = objective.uses.describe(jax.device_get(prepare(objective, batch)), tokenizer)
    assert text == "forward: <S> w7 | <S> w8 -> w9 / backward: w8 | </S> w7 w6 | -> <S>"
