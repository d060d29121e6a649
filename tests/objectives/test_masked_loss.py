"""The masked-LM loss against its definition in numpy."""

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
from tests.objectives.toys import FREQUENT, MASK, NETWORK, VOCABULARY, V, batch, example, model, prepare
from tests.programs import largest

T, K = 32, 5
RNG = np.random.default_rng(0)


def words(n):
    return RNG.integers(5, 12, n).tolist()  # few, so that the most frequent one is among them


FULL = [0, 1, 3, 4]  # examples with content, of 32, 14, 6 and (packed) 19 tokens; the others only fill the batch up
EXAMPLES = [example(T, (words(15), words(14))), example(T, (words(7), words(4))), example(T),
        example(T, (words(1), words(2))), example(T, (words(6), words(4)), (words(4),)), example(T)]
BATCH = batch(EXAMPLES, pair_label=np.array([0, 1, 0, 1, 1, 0], np.int32))
OBJECTIVE = masked.build(masked.Config(sentence_pair=True), model(), VOCABULARY)
PARAMS = reference.random_params(OBJECTIVE.specs, seed=12)
PREPARED = prepare(OBJECTIVE, BATCH)


def by_hand(params, prepared):
    """(hidden [b, t, d], log-probabilities [b, m, v] at the predicted positions)."""
    p = reference.float64(params)
    segments = prepared["segment_ids"]
    positions = np.broadcast_to(np.arange(T), segments.shape)
    hidden, _, _ = reference.encode(params["encoder"], NETWORK, prepared["inputs"], prepared["token_type_ids"],
                                    positions, segments[:, :, None] == segments[:, None, :])
    head = p["objective"]["masked"]
    x = np.take_along_axis(hidden, prepared["predicted"][..., None], 1)
    x = reference.ACTIVATIONS["gelu_tanh"](reference.linear(head["transform"], x))
    x = reference.layer_norm(head["norm"], x, NETWORK.norm_eps)
    return hidden, log_softmax(x @ p["encoder"]["embedding"]["token"].T + head["bias"], axis=-1)


def test_the_table_alone_reads_the_hidden_states(expected):
    objective = masked.build(masked.Config(head="table"), model(), VOCABULARY)
    bias = PARAMS["objective"]["masked"]["bias"]
    params = {"encoder": PARAMS["encoder"], "objective": {"masked": {"bias": bias}}}
    assert P.flatten(objective.specs).keys() == P.flatten(params).keys()
    total, _ = jax.jit(objective.loss)(params, PREPARED, None, Carry())
    x = np.take_along_axis(expected[0], PREPARED["predicted"][..., None], 1)
    logits = x @ np.asarray(params["encoder"]["embedding"]["token"]).T + np.asarray(bias)
    nll = -np.take_along_axis(log_softmax(logits, axis=-1), PREPARED["targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(total, (nll * PREPARED["weights"]).sum(), rtol=1e-5)


@jax.jit
def step(params, prepared):
    """((total, metrics), gradient)."""
    def f(params):
        total, (metrics, carry) = OBJECTIVE.loss(params, prepared, None, Carry())
        assert carry == Carry()
        return total, metrics

    return jax.value_and_grad(f, has_aux=True)(params)


@pytest.fixture(scope="module")
def expected():
    return by_hand(PARAMS, PREPARED)


@pytest.fixture(scope="module")
def full_batch():
    return step(PARAMS, PREPARED)


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs(expected, full_batch):
    hidden, log_probabilities = expected
    target_mask = PREPARED["weights"] > 0
    assert target_mask.sum(1).tolist() == [5, 2, 0, 1, 3, 0]
    nll = -np.take_along_axis(log_probabilities, PREPARED["targets"][..., None], -1)[..., 0][target_mask]
    pair = reference.float64(PARAMS["objective"]["pair"])
    pooled = np.tanh(reference.linear(pair["pooler"], hidden[:, 0]))
    both = log_softmax(reference.linear(pair["classifier"], pooled), axis=-1)
    labels = BATCH["pair_label"][FULL]
    pair_loss = -both[FULL, labels]

    (total, metrics), _ = full_batch
    assert total == pytest.approx(nll.mean() + pair_loss.mean(), rel=1e-5)
    computed = {name: (float(value), float(count)) for name, (value, count) in metrics.items()}
    assert computed == {
        "pair_fraction": ((labels == 1).sum(), len(labels)),
        "mlm_loss": (pytest.approx(nll.sum(), rel=1e-5), 11),
        "mlm_accuracy": ((log_probabilities.argmax(-1) == PREPARED["targets"])[target_mask].sum(), 11),
        "most_frequent_accuracy": ((PREPARED["targets"] == FREQUENT)[target_mask].sum(), 11),
        "pair_loss": (pytest.approx(pair_loss.sum(), rel=1e-5), 4),
        "pair_accuracy": ((both.argmax(-1)[FULL] == labels).sum(), 4),
    }


def test_the_baseline_predicts_the_most_frequent_word():
    frequent = np.broadcast_to(np.arange(5) < 3, (6, 5))
    prepared = PREPARED | {"targets": np.where(frequent, FREQUENT, FREQUENT + 1)}
    (_, metrics), _ = step(PARAMS, prepared)
    target_mask = PREPARED["weights"] > 0
    assert metrics["most_frequent_accuracy"] == (target_mask[:, :3].sum(), target_mask.sum())


def test_the_loss_does_not_depend_on_the_original_tokens(full_batch):
    (total, _), _ = step(PARAMS, PREPARED | {"tokens": np.zeros_like(PREPARED["tokens"])})
    assert total == full_batch[0][0]


def test_unused_predictions_and_padding_do_not_count(full_batch):
    unused = PREPARED["weights"] == 0
    changed = PREPARED | {"targets": np.where(unused, 3, PREPARED["targets"]),
                          "predicted": np.where(unused, T - 1, PREPARED["predicted"]),
                          "inputs": np.where(BATCH["segment_ids"] == 0, 9, PREPARED["inputs"]),
                          "pair_label": np.where(np.isin(np.arange(6), FULL),  PREPARED["pair_label"], 1)}
    (total, metrics), _ = step(PARAMS, changed)
    assert total == pytest.approx(float(full_batch[0][0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, full_batch[0][1])


def test_gradients_match_differences_of_the_definition(full_batch):
    prepared = PREPARED | {"pair_weights": np.zeros(6, np.float32)}
    _, grads = step(PARAMS, prepared)
    point = reference.float64(PARAMS)
    direction = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape), point)

    def along(h):
        _, log_probabilities = by_hand(jax.tree.map(lambda a, b: a + h * b, point, direction), prepared)
        nll = -np.take_along_axis(log_probabilities, PREPARED["targets"][..., None], -1)[..., 0]
        return (nll * PREPARED["weights"].astype(np.float64)).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)
    assert all((g == 0).all() for g in jax.tree.leaves(grads["objective"]["pair"]))  # their weights are 0


def test_weights_add_to_one_or_are_all_zero():
    target_mask = np.random.default_rng(0).random((64, 20)) < 0.7
    assert np.asarray(normalize_weights(jnp.asarray(target_mask)), np.float64).sum() == pytest.approx(1, rel=1e-6)
    assert (np.asarray(normalize_weights(jnp.asarray(target_mask))) > 0).tolist() == target_mask.tolist()
    assert (normalize_weights(jnp.zeros((3, 2), bool)) == 0).all()
    np.testing.assert_allclose(normalize_weights(jnp.array([0.5, 1.5])), [0.25, 0.75], rtol=1e-6)


def test_bfloat16_gives_a_float32_loss_nearby(full_batch):
    low = masked.build(masked.Config(sentence_pair=True), model(dtype="bfloat16"), VOCABULARY)
    total, (metrics, _) = jax.jit(lambda p: low.loss(p, PREPARED, None, Carry()))(PARAMS)
    assert total.dtype == metrics["mlm_loss"][0].dtype == metrics["pair_loss"][0].dtype == jnp.float32
    assert total == pytest.approx(float(full_batch[0][0]), rel=0.02)


# --- The head runs at the predicted positions only ---


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_no_array_of_the_step_is_as_large_as_the_logits_of_all_positions(remat):
    b, t, v = 4, 16, 1000
    c = transformer.Config(vocab=v, width=8, layers=1, heads=2, mlp=16, max_length=t)
    network = transformer.build(c, Execution(remat=remat))
    objective = masked.build(masked.Config(), network, VOCABULARY)
    raw = batch([example(t, (words(5), words(6)))] * b)
    prepared = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in prepare(objective, raw).items()}
    params = P.abstract(objective.specs)

    def loss(p, q, key):
        return objective.loss(p, q, key, Carry())[0]

    assert largest(jax.value_and_grad(loss), params, prepared, jax.random.key(0)) < b * t * v / 4
    everywhere = prepared | {name: jax.ShapeDtypeStruct((b, t), prepared[name].dtype)
                             for name in ("predicted", "targets", "weights")}
    assert largest(jax.value_and_grad(loss), params, everywhere, jax.random.key(0)) >= b * t * v


# --- Predictions and descriptions ---


def test_predict_gives_the_most_probable_tokens():
    prepared = BATCH | {"tokens": PREPARED["inputs"], "predicted": PREPARED["predicted"]}
    prepared.pop("pair_label")  # it needs no targets
    predictions = jax.jit(partial(OBJECTIVE.predict, k=K))(PARAMS, prepared)
    _, log_probabilities = by_hand(PARAMS, PREPARED)
    order = np.argsort(-log_probabilities[..., :V], -1)[..., :K]  # without unused rows of the table
    np.testing.assert_array_equal(predictions["words"], order)
    expected = np.exp(np.take_along_axis(log_probabilities, order, -1))
    np.testing.assert_allclose(predictions["probabilities"], expected, rtol=1e-4)


class Tokens:
    def id_to_token(self, token):
        return "[MASK]" if token == MASK else f"w{token}"


def test_describe_marks_targets():
    tokens = np.array([[2, 5, 6, 7, 8, 3, 0]])
    prepared = {"tokens": tokens, "segment_ids": np.array([[1] * 6 + [0]]),
                "inputs": np.array([[2, MASK, 6, 9, 8, 3, 0]]),
                "predicted": np.array([[3, 1, 4, 2]]), "weights": np.array([[1 / 3, 1 / 3, 1 / 3, 0]]),
                "targets": np.array([[7, 5, 8, 6]])}
    plain = masked.build(masked.Config(), model(), VOCABULARY)
    text = "w2 {w5 -> [MASK]} w6 {w7 -> w9} {w8 = w8} w3"
    assert plain.uses.describe(prepared, Tokens()) == [text]
    pair = {"pair_label": np.array([1]), "pair_weights": np.array([1.0])}
    assert OBJECTIVE.uses.describe(prepared | pair, Tokens()) == ["[pair label 1] " + text]


def test_the_head_has_the_published_shapes():
    heads = P.flatten(OBJECTIVE.specs["objective"])
    assert {path: spec.shape for path, spec in heads.items()} == {
        "masked/transform/kernel": (12, 12), "masked/transform/bias": (12,), "masked/norm/scale": (12,),
        "masked/norm/bias": (12,), "masked/bias": (V + 2,), "pair/pooler/kernel": (12, 12), "pair/pooler/bias": (12,),
        "pair/classifier/kernel": (12, 2), "pair/classifier/bias": (2,),
    }
