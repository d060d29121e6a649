"""What a masked language model is charged for, against its definition in numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.objectives import masked
from lmrep.objectives.base import Carry
from lmrep.objectives.outputs import normalize_weights
from tests import reference
from tests.objectives.toys import FREQUENT, MASK, NETWORK, VOCABULARY, V, batch, model, prepare, row
from tests.programs import largest

T, K = 32, 5
RNG = np.random.default_rng(0)


def words(n):
    return RNG.integers(5, 12, n).tolist()  # few, so that the most frequent one is among them


FULL = [0, 1, 3, 4]  # rows with content, of 32, 14, 6 and (packed) 19 tokens; the others only fill the batch up
ROWS = [row(T, (words(15), words(14))), row(T, (words(7), words(4))), row(T),
        row(T, (words(1), words(2))), row(T, (words(6), words(4)), (words(4),)), row(T)]
GIVEN = batch(ROWS, pair_label=np.array([0, 1, 0, 1, 1, 0], np.int32))
ASKED = masked.build(masked.Config(sentence_pair=True), model(), VOCABULARY)
PARAMS = reference.random_params(ASKED.specs, seed=12)
QUESTION = prepare(ASKED, GIVEN)


def by_hand(params, question):
    """(hidden [b, t, d], log-probabilities [b, m, v] at the predicted positions)."""
    p = reference.float64(params)
    segments = question["segment_ids"]
    positions = np.broadcast_to(np.arange(T), segments.shape)
    hidden, _, _ = reference.encode(params["encoder"], NETWORK, question["inputs"], question["token_type_ids"],
                                    positions, segments[:, :, None] == segments[:, None, :])
    head = p["objective"]["masked"]
    x = np.take_along_axis(hidden, question["predicted"][..., None], 1)
    x = reference.ACTIVATIONS["gelu_tanh"](reference.linear(head["transform"], x))
    x = reference.layer_norm(head["norm"], x, NETWORK.norm_eps)
    return hidden, log_softmax(x @ p["encoder"]["embedding"]["token"].T + head["bias"], axis=-1)


@jax.jit
def step(params, question):
    """((total, metrics), gradient)."""
    def f(params):
        total, (metrics, carry) = ASKED.loss(params, question, None, Carry())
        assert carry == Carry()
        return total, metrics

    return jax.value_and_grad(f, has_aux=True)(params)


@pytest.fixture(scope="module")
def expected():
    return by_hand(PARAMS, QUESTION)


@pytest.fixture(scope="module")
def whole():
    return step(PARAMS, QUESTION)


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs(expected, whole):
    hidden, logs = expected
    asked = QUESTION["weights"] > 0
    assert asked.sum(1).tolist() == [5, 2, 0, 1, 3, 0]
    nats = -np.take_along_axis(logs, QUESTION["targets"][..., None], -1)[..., 0][asked]
    pair = reference.float64(PARAMS["objective"]["pair"])
    pooled = np.tanh(reference.linear(pair["pooler"], hidden[:, 0]))
    both = log_softmax(reference.linear(pair["classifier"], pooled), axis=-1)
    labels = GIVEN["pair_label"][FULL]
    pair_loss = -both[FULL, labels]

    (total, metrics), _ = whole
    assert total == pytest.approx(nats.mean() + pair_loss.mean(), rel=1e-5)
    found = {name: (float(value), float(count)) for name, (value, count) in metrics.items()}
    assert found == {
        "mlm_loss": (pytest.approx(nats.sum(), rel=1e-5), 11),
        "mlm_accuracy": ((logs.argmax(-1) == QUESTION["targets"])[asked].sum(), 11),
        "most_frequent_accuracy": ((QUESTION["targets"] == FREQUENT)[asked].sum(), 11),
        "pair_loss": (pytest.approx(pair_loss.sum(), rel=1e-5), 4),
        "pair_accuracy": ((both.argmax(-1)[FULL] == labels).sum(), 4),
    }


def test_the_baseline_names_the_most_frequent_word():
    frequent = np.broadcast_to(np.arange(5) < 3, (6, 5))
    question = QUESTION | {"targets": np.where(frequent, FREQUENT, FREQUENT + 1)}
    (_, metrics), _ = step(PARAMS, question)
    asked = QUESTION["weights"] > 0
    assert metrics["most_frequent_accuracy"] == (asked[:, :3].sum(), asked.sum())


def test_the_model_never_sees_the_answers(whole):
    (total, _), _ = step(PARAMS, QUESTION | {"tokens": np.zeros_like(QUESTION["tokens"])})
    assert total == whole[0][0]


def test_slots_that_ask_nothing_and_padding_count_nothing(whole):
    idle = QUESTION["weights"] == 0
    changed = QUESTION | {"targets": np.where(idle, 3, QUESTION["targets"]),
                          "predicted": np.where(idle, T - 1, QUESTION["predicted"]),
                          "inputs": np.where(GIVEN["segment_ids"] == 0, 9, QUESTION["inputs"]),
                          "pair_label": np.where(np.isin(np.arange(6), FULL),  QUESTION["pair_label"], 1)}
    (total, metrics), _ = step(PARAMS, changed)
    assert total == pytest.approx(float(whole[0][0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, whole[0][1])


def test_parts_of_a_batch_add_up_to_the_whole(whole):
    """The weights know the whole batch: sums over parts of it are exact. The third of these is empty."""
    pieces = [step(PARAMS, {name: x[i::3] for name, x in QUESTION.items()}) for i in range(3)]
    (total, metrics), grads = jax.tree.map(lambda *x: sum(np.asarray(y, np.float64) for y in x), *pieces)
    assert total == pytest.approx(float(whole[0][0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, whole[0][1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads, whole[1])


def test_gradients_match_differences_of_the_definition(whole):
    question = QUESTION | {"pair_weights": np.zeros(6, np.float32)}
    _, grads = step(PARAMS, question)
    point = reference.float64(PARAMS)
    direction = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape), point)

    def along(h):
        _, logs = by_hand(jax.tree.map(lambda a, b: a + h * b, point, direction), question)
        nats = -np.take_along_axis(logs, QUESTION["targets"][..., None], -1)[..., 0]
        return (nats * QUESTION["weights"].astype(np.float64)).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)
    assert all((g == 0).all() for g in jax.tree.leaves(grads["objective"]["pair"]))  # their weights were taken away


def test_shares_add_to_one_or_are_all_zero():
    asked = np.random.default_rng(0).random((64, 20)) < 0.7
    assert np.asarray(normalize_weights(jnp.asarray(asked)), np.float64).sum() == pytest.approx(1, rel=1e-6)
    assert (np.asarray(normalize_weights(jnp.asarray(asked))) > 0).tolist() == asked.tolist()
    assert (normalize_weights(jnp.zeros((3, 2), bool)) == 0).all()
    np.testing.assert_allclose(normalize_weights(jnp.array([0.5, 1.5])), [0.25, 0.75], rtol=1e-6)


def test_dropout_needs_a_key():
    f = jax.jit(lambda key: ASKED.loss(PARAMS, QUESTION, key, Carry())[0])
    values = [float(f(jax.random.key(i))) for i in (0, 1, 0)]
    assert values[0] == values[2] != values[1]


def test_bfloat16_gives_a_float32_loss_nearby(whole):
    low = masked.build(masked.Config(sentence_pair=True), model(dtype="bfloat16"), VOCABULARY)
    total, (metrics, _) = jax.jit(lambda p: low.loss(p, QUESTION, None, Carry()))(PARAMS)
    assert total.dtype == metrics["mlm_loss"][0].dtype == metrics["pair_loss"][0].dtype == jnp.float32
    assert total == pytest.approx(float(whole[0][0]), rel=0.02)


# --- The head runs at the predicted positions only ---


@pytest.mark.parametrize("remat", ["none", "full"])
def test_no_array_of_the_step_is_as_large_as_all_scores(remat):
    b, t, v = 4, 16, 1000
    c = transformer.Config(vocab=v, width=8, layers=2, heads=2, mlp=16, max_length=t)
    network = transformer.build(c, Execution(remat=remat))
    objective = masked.build(masked.Config(), network, VOCABULARY)
    given = batch([row(t, (words(5), words(6)))] * b)
    question = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in prepare(objective, given).items()}
    params = P.abstract(objective.specs)

    def loss(p, q, key):
        return objective.loss(p, q, key, Carry())[0]

    assert largest(jax.value_and_grad(loss), params, question, jax.random.key(0)) < b * t * v / 4
    everywhere = question | {name: jax.ShapeDtypeStruct((b, t), question[name].dtype)
                             for name in ("predicted", "targets", "weights")}
    assert largest(jax.value_and_grad(loss), params, everywhere, jax.random.key(0)) >= b * t * v


# --- Answers and texts ---


def test_predict_gives_the_likeliest_words():
    question = GIVEN | {"tokens": QUESTION["inputs"], "predicted": QUESTION["predicted"]}
    question.pop("pair_label")  # it needs no targets
    answers = jax.jit(partial(ASKED.predict, k=K))(PARAMS, question)
    _, logs = by_hand(PARAMS, QUESTION)
    order = np.argsort(-logs[..., :V], -1)[..., :K]  # rows beyond the vocabulary are no words
    np.testing.assert_array_equal(answers["words"], order)
    np.testing.assert_allclose(answers["probabilities"], np.exp(np.take_along_axis(logs, order, -1)), rtol=1e-4)


class Pieces:
    def id_to_token(self, token):
        return "[MASK]" if token == MASK else f"w{token}"


def test_describe_marks_what_is_asked():
    tokens = np.array([[2, 5, 6, 7, 8, 3, 0]])
    question = {"tokens": tokens, "segment_ids": np.array([[1] * 6 + [0]]),
                "inputs": np.array([[2, MASK, 6, 9, 8, 3, 0]]),
                "predicted": np.array([[3, 1, 4, 2]]), "weights": np.array([[1 / 3, 1 / 3, 1 / 3, 0]]),
                "targets": np.array([[7, 5, 8, 6]])}
    plain = masked.build(masked.Config(), model(), VOCABULARY)
    text = "w2 {w5 -> [MASK]} w6 {w7 -> w9} {w8 = w8} w3"
    assert plain.describe(question, Pieces()) == [text]
    pair = {"pair_label": np.array([1]), "pair_weights": np.array([1.0])}
    assert ASKED.describe(question | pair, Pieces()) == ["[pair label 1] " + text]


def test_the_head_has_the_published_shapes():
    heads = P.flatten(ASKED.specs["objective"])
    assert {path: spec.shape for path, spec in heads.items()} == {
        "masked/transform/kernel": (12, 12), "masked/transform/bias": (12,), "masked/norm/scale": (12,),
        "masked/norm/bias": (12,), "masked/bias": (V + 2,), "pair/pooler/kernel": (12, 12), "pair/pooler/bias": (12,),
        "pair/classifier/kernel": (12, 2), "pair/classifier/bias": (2,),
    }
