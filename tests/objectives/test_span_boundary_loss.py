"""SpanBERT's losses, from a span's own states and from those around it, against their definition in numpy."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.stack import Execution
from lmrep.models import PRESETS, transformer
from lmrep.objectives import span_boundary
from lmrep.objectives.base import Carry
from tests import reference
from tests.objectives.test_span_boundary import build, runs, sets
from tests.objectives.toys import MASK, NETWORK, SPECIALS, VOCABULARY, V, batch, example, model, prepare
from tests.programs import largest

T = 32
RNG = np.random.default_rng(0)


def words(n):
    return RNG.integers(5, 12, n).tolist()


BATCH = batch([example(T, (words(15), words(14))), example(T, (words(10),), (words(9),)), example(T),
               example(T, (words(1),)), example(T, (words(24),)), example(T, (words(13),))],
              pair_label=np.array([0, 1, 0, 1, 1, 0], np.int32))
FIELDS = {"rate": 0.25, "weight": 0.7, "max_targets": 3, "position_width": 6, "sentence_pair": True}
OBJECTIVE = build(**FIELDS)
PARAMS = reference.random_params(OBJECTIVE.specs, seed=12)
PREPARED = prepare(OBJECTIVE, BATCH)


def by_hand(params, prepared):
    """(hidden at every position, log-probabilities [b, m, v] by the own states and by those around)."""
    p, segments = reference.float64(params), prepared["segment_ids"]
    positions = np.broadcast_to(np.arange(T), segments.shape)
    hidden, _, _ = reference.encode(params["encoder"], NETWORK, prepared["inputs"], prepared["token_type_ids"],
                                    positions, segments[:, :, None] == segments[:, None, :])
    table, head, boundary = p["encoder"]["embedding"]["token"], p["objective"]["masked"], p["objective"]["boundary"]
    gelu, eps = reference.ACTIVATIONS["gelu_tanh"], NETWORK.norm_eps

    def states(positions):
        return np.take_along_axis(hidden, np.clip(positions, 0, T - 1)[..., None], 1)

    x = gelu(reference.linear(head["transform"], states(prepared["predicted"])))
    own = log_softmax(reference.layer_norm(head["norm"], x, eps) @ table.T + head["bias"], -1)
    first, last, offset = np.zeros((3, *prepared["predicted"].shape), int)
    for b, chosen in enumerate(sets(prepared)):
        for j, i in enumerate(prepared["predicted"][b]):
            for start, end in runs(chosen):
                if start <= i <= end:
                    first[b, j], last[b, j], offset[b, j] = start, end, i - start
    x = np.concatenate([states(first - 1), states(last + 1), boundary["place"][np.minimum(offset, 2)]], -1)
    x = reference.layer_norm(boundary["join_norm"], gelu(reference.linear(boundary["join"], x)), eps)
    x = reference.layer_norm(boundary["norm"], gelu(reference.linear(boundary["transform"], x)), eps)
    return hidden, own, log_softmax(x @ table.T + boundary["bias"], -1)


def sum_nll(logs, prepared):
    return -np.take_along_axis(logs, prepared["targets"][..., None], -1)[..., 0]


@partial(jax.jit, static_argnames="objective")
def step(params, prepared, objective=OBJECTIVE):
    """((total, metrics), gradient)."""
    def f(params):
        total, (metrics, _) = objective.loss(params, prepared, None, Carry())
        return total, metrics

    return jax.value_and_grad(f, has_aux=True)(params)


@pytest.fixture(scope="module")
def full_batch():
    return step(PARAMS, PREPARED)


def test_the_loss_is_that_of_the_paper(full_batch):
    hidden, own, boundary = by_hand(PARAMS, PREPARED)
    target_mask, bounded = PREPARED["weights"] > 0, PREPARED["boundary_weights"] > 0
    assert 5 < bounded.sum() < target_mask.sum()
    own_nll, boundary_nll = sum_nll(own, PREPARED)[target_mask], sum_nll(boundary, PREPARED)[bounded]
    pair = reference.float64(PARAMS["objective"]["pair"])
    pooled = np.tanh(reference.linear(pair["pooler"], hidden[:, 0]))
    both = log_softmax(reference.linear(pair["classifier"], pooled), -1)
    full = [0, 1, 3, 4, 5]
    pair_loss = -both[full, BATCH["pair_label"][full]]
    (total, metrics), _ = full_batch
    boundary_loss = boundary_nll.sum() / (len(boundary_nll) + 1)
    assert total == pytest.approx(own_nll.mean() + 0.7 * boundary_loss + pair_loss.mean(), rel=1e-5)
    computed = {name: (float(value), float(count)) for name, (value, count) in metrics.items()}
    correct = boundary.argmax(-1) == PREPARED["targets"]
    assert computed["mlm_loss"] == (pytest.approx(own_nll.sum(), rel=1e-5), target_mask.sum())
    assert computed["boundary_loss"] == (pytest.approx(boundary_nll.sum(), rel=1e-5), bounded.sum())
    assert computed["boundary_accuracy"] == (correct[bounded].sum(), bounded.sum())
    assert computed["pair_loss"] == (pytest.approx(pair_loss.sum(), rel=1e-5), 5)


def test_the_gradient_is_that_of_the_definition_and_reaches_both_heads(full_batch):
    prepared = PREPARED | {"pair_weights": np.zeros(6, np.float32)}
    _, grads = step(PARAMS, prepared)
    point = reference.float64(PARAMS)
    direction = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape), point)

    def along(h):
        _, own, boundary = by_hand(jax.tree.map(lambda a, b: a + h * b, point, direction), prepared)
        weights = prepared["weights"].astype(np.float64), prepared["boundary_weights"].astype(np.float64)
        return (sum_nll(own, prepared) * weights[0]).sum() + 0.7 * (sum_nll(boundary, prepared) * weights[1]).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)
    for path, g in P.flatten(full_batch[1]).items():
        assert np.any(g), path  # every parameter learns
    assert np.any(full_batch[1]["objective"]["boundary"]["place"], axis=1).all()


def test_the_shared_table_learns_from_both(full_batch):
    def table(**weights):
        zeros = {name: np.zeros_like(PREPARED[name]) for name in weights}
        return np.asarray(step(PARAMS, PREPARED | zeros)[1]["encoder"]["embedding"]["token"])

    none = table(weights=0, boundary_weights=0)  # the pair's
    ends, own = table(weights=0) - none, table(boundary_weights=0) - none
    assert np.abs(ends).max() > 1e-3 and np.abs(own).max() > 1e-3
    np.testing.assert_allclose(own + ends + none, full_batch[1]["encoder"]["embedding"]["token"], rtol=1e-3, atol=1e-5)


def test_the_loss_does_not_depend_on_the_original_tokens(full_batch):
    (total, _), _ = step(PARAMS, PREPARED | {"tokens": np.zeros_like(PREPARED["tokens"])})
    assert total == full_batch[0][0]


@pytest.mark.slow
def test_bfloat16_gives_a_float32_loss_nearby(full_batch):
    low = span_boundary.build(span_boundary.Config(**FIELDS), model(dtype="bfloat16"), VOCABULARY)
    total, (metrics, _) = jax.jit(lambda p: low.loss(p, PREPARED, None, Carry()))(PARAMS)
    assert total.dtype == metrics["boundary_loss"][0].dtype == jnp.float32
    assert total == pytest.approx(float(full_batch[0][0]), rel=0.02)


@pytest.mark.slow
def test_no_array_of_the_step_is_as_large_as_the_logits_of_all_positions():
    b, t, v = 4, 16, 1000
    config = transformer.Config(vocab=v, width=8, layers=1, heads=2, mlp=16, max_length=t)
    network = transformer.build(config, Execution())
    objective = span_boundary.build(span_boundary.Config(), network, VOCABULARY)
    prepared = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in
                prepare(objective, batch([example(t, (words(5), words(6)))] * b)).items()}

    def loss(p, q, key):
        return objective.loss(p, q, key, Carry())[0]

    size = largest(jax.value_and_grad(loss), P.abstract(objective.specs), prepared, jax.random.key(0))
    assert size < b * t * v / 4


# --- Heads and texts ---



@pytest.mark.parametrize(("name", "encoder", "head"), [
    ("spanbert_base", 107_719_680, 1_960_676), ("spanbert_large", 332_529_664, 3_389_668)])
def test_parameters_are_counted_to_the_unit(name, encoder, head):
    config = PRESETS[name].config
    vocabulary = Vocabulary(config.vocab, SPECIALS, np.ones(config.vocab, bool), np.ones(config.vocab, int))

    def specs(**fields):
        return span_boundary.build(span_boundary.Config(**fields), transformer.build(config), vocabulary).specs

    full = specs()
    assert P.count(full["encoder"]) == PRESETS[name].encoder == encoder
    assert P.count(full["objective"]["boundary"]) == head
    assert P.count(full) == PRESETS[name].pretraining == P.count(specs(boundary=False)) + head
    assert P.count(specs(max_targets=15)) == P.count(full) - 1000


def test_narrow_tables_have_narrow_heads():
    c = replace(NETWORK, embedding=6)
    objective = span_boundary.build(span_boundary.Config(), transformer.build(c), VOCABULARY)
    params, prepared = reference.random_params(objective.specs), prepare(objective, BATCH)
    total, _ = jax.jit(lambda p: objective.loss(p, prepared, None, Carry()))(params)
    assert np.isfinite(total)


def test_predictions_are_those_of_the_masked_head():
    prepared = BATCH | {"tokens": PREPARED["inputs"], "predicted": PREPARED["predicted"]}
    predictions = jax.jit(partial(OBJECTIVE.predict, k=3))(PARAMS, prepared)
    _, own, _ = by_hand(PARAMS, PREPARED)
    np.testing.assert_array_equal(predictions["words"], np.argsort(-own[..., :V], -1)[..., :3])


class Tokens:
    def id_to_token(self, token):
        return "[MASK]" if token == MASK else f"w{token}"


def test_describe_marks_spans():
    prepared = {"tokens": np.array([[2, 5, 6, 7, 8, 9, 3, 0]]), "segment_ids": np.array([[1] * 7 + [0]]),
                "inputs": np.array([[2, 5, MASK, MASK, 8, 9, 3, 0]]), "predicted": np.array([[2, 3, 5, 0]]),
                "weights": np.array([[1 / 3, 1 / 3, 1 / 3, 0]]),
                "boundary_weights": np.array([[1 / 3, 1 / 3, 0, 0]])}
    text = "w2 w5 {{w6 w7 -> [MASK] [MASK]}} w8 {w9 = w9} w3"
    assert build().uses.describe(prepared, Tokens()) == [text]
    pair = {"pair_label": np.array([1]), "pair_weights": np.array([1.0])}
    assert OBJECTIVE.uses.describe(prepared | pair, Tokens()) == ["[pair label 1] " + text]
    del prepared["boundary_weights"]
    assert build(boundary=False).uses.describe(prepared, Tokens()) == [text.replace("{{", "{").replace("}}", "}")]
