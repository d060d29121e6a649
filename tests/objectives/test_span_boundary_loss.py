"""What SpanBERT is charged for, by a span's own states and by those around it, against its definition in numpy."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.stack import Execution
from lmrep.models import PRESETS, transformer
from lmrep.objectives import span_boundary
from lmrep.objectives.base import Carry, Keys
from tests import reference
from tests.objectives.test_span_boundary import build, runs, sets
from tests.objectives.toys import MASK, NETWORK, SPECIALS, VOCABULARY, V, batch, model, prepare, row
from tests.programs import largest

T = 32
RNG = np.random.default_rng(0)


def words(n):
    return RNG.integers(5, 12, n).tolist()


GIVEN = batch([row(T, (words(15), words(14))), row(T, (words(10),), (words(9),)), row(T), row(T, (words(1),)),
               row(T, (words(24),)), row(T, (words(13),))], pair_label=np.array([0, 1, 0, 1, 1, 0], np.int32))
FIELDS = {"rate": 0.25, "weight": 0.7, "max_targets": 3, "position_width": 6, "sentence_pair": True}
ASKED = build(**FIELDS)
PARAMS = reference.random_params(ASKED.specs, seed=12)
QUESTION = prepare(ASKED, GIVEN)


def by_hand(params, question):
    """(hidden at every position, log-probabilities [b, m, v] by the own states and by those around)."""
    p, segments = reference.float64(params), question["segment_ids"]
    positions = np.broadcast_to(np.arange(T), segments.shape)
    hidden, _, _ = reference.encode(params["encoder"], NETWORK, question["inputs"], question["token_type_ids"],
                                    positions, segments[:, :, None] == segments[:, None, :])
    table, own, boundary = p["encoder"]["embedding"]["token"], p["objective"]["masked"], p["objective"]["boundary"]
    gelu, eps = reference.ACTIVATIONS["gelu_tanh"], NETWORK.norm_eps

    def states(places):
        return np.take_along_axis(hidden, np.clip(places, 0, T - 1)[..., None], 1)

    x = gelu(reference.linear(own["transform"], states(question["predicted"])))
    one = log_softmax(reference.layer_norm(own["norm"], x, eps) @ table.T + own["bias"], -1)
    first, last, place = np.zeros((3, *question["predicted"].shape), int)
    for b, chosen in enumerate(sets(question)):
        for j, i in enumerate(question["predicted"][b]):
            for start, end in runs(chosen):
                if start <= i <= end:
                    first[b, j], last[b, j], place[b, j] = start, end, i - start
    x = np.concatenate([states(first - 1), states(last + 1), boundary["place"][np.minimum(place, 2)]], -1)
    x = reference.layer_norm(boundary["join_norm"], gelu(reference.linear(boundary["join"], x)), eps)
    x = reference.layer_norm(boundary["norm"], gelu(reference.linear(boundary["transform"], x)), eps)
    return hidden, one, log_softmax(x @ table.T + boundary["bias"], -1)


def sum_nll(logs, question):
    return -np.take_along_axis(logs, question["targets"][..., None], -1)[..., 0]


@partial(jax.jit, static_argnames="objective")
def step(params, question, objective=ASKED):
    """((total, metrics), gradient)."""
    def f(params):
        total, (metrics, _) = objective.loss(params, question, None, Carry())
        return total, metrics

    return jax.value_and_grad(f, has_aux=True)(params)


@pytest.fixture(scope="module")
def whole():
    return step(PARAMS, QUESTION)


def test_the_loss_is_that_of_the_paper(whole):
    hidden, one, around = by_hand(PARAMS, QUESTION)
    asked, bounded = QUESTION["weights"] > 0, QUESTION["boundary_weights"] > 0
    assert 5 < bounded.sum() < asked.sum()
    own, ends = sum_nll(one, QUESTION)[asked], sum_nll(around, QUESTION)[bounded]
    pair = reference.float64(PARAMS["objective"]["pair"])
    pooled = np.tanh(reference.linear(pair["pooler"], hidden[:, 0]))
    both = log_softmax(reference.linear(pair["classifier"], pooled), -1)
    full = [0, 1, 3, 4, 5]
    pair_loss = -both[full, GIVEN["pair_label"][full]]
    (total, metrics), _ = whole
    assert total == pytest.approx(own.mean() + 0.7 * ends.sum() / (len(ends) + 1) + pair_loss.mean(), rel=1e-5)
    found = {name: (float(value), float(count)) for name, (value, count) in metrics.items()}
    hits = around.argmax(-1) == QUESTION["targets"]
    assert found["mlm_loss"] == (pytest.approx(own.sum(), rel=1e-5), asked.sum())
    assert found["boundary_loss"] == (pytest.approx(ends.sum(), rel=1e-5), bounded.sum())
    assert found["boundary_accuracy"] == (hits[bounded].sum(), bounded.sum())
    assert found["pair_loss"] == (pytest.approx(pair_loss.sum(), rel=1e-5), 5)


def test_parts_of_a_batch_add_up_to_the_whole(whole):
    pieces = [step(PARAMS, {name: x[i::3] for name, x in QUESTION.items()}) for i in range(3)]
    (total, metrics), grads = jax.tree.map(lambda *x: sum(np.asarray(y, np.float64) for y in x), *pieces)
    assert total == pytest.approx(float(whole[0][0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), metrics, whole[0][1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads, whole[1])


def test_a_mesh_asks_the_same_and_gives_the_same():
    given = {name: x[[0, 1, 3, 4]] for name, x in GIVEN.items()}

    def both(params, given):
        question = ASKED.prepare(keys, given)
        return question, ASKED.loss(params, question, None, Carry())[0]

    keys = Keys(jax.random.split(jax.random.key(0), 4), jax.random.key(1))
    question, total = jax.jit(both)(PARAMS, given)
    mesh = sharding.make_mesh(2, 2, 2)
    params = jax.device_put(PARAMS, sharding.shardings(ASKED.specs, mesh))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    with sharding.use_mesh(mesh):
        shared_question, shared = jax.jit(both)(params, jax.device_put(given, rows))
    jax.tree.map(np.testing.assert_array_equal, shared_question, question)
    assert float(shared) == pytest.approx(float(total), rel=1e-5)


def test_the_gradient_is_that_of_the_definition_and_reaches_both_heads(whole):
    question = QUESTION | {"pair_weights": np.zeros(6, np.float32)}
    _, grads = step(PARAMS, question)
    point = reference.float64(PARAMS)
    direction = jax.tree.map(lambda x: np.random.default_rng(1).normal(size=x.shape), point)

    def along(h):
        _, one, around = by_hand(jax.tree.map(lambda a, b: a + h * b, point, direction), question)
        weights = question["weights"].astype(np.float64), question["boundary_weights"].astype(np.float64)
        return (sum_nll(one, question) * weights[0]).sum() + 0.7 * (sum_nll(around, question) * weights[1]).sum()

    products = jax.tree.map(lambda g, v: (np.asarray(g, np.float64) * v).sum(), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-3)
    for path, g in P.flatten(whole[1]).items():
        assert np.any(g), path  # every parameter learns
    assert np.any(whole[1]["objective"]["boundary"]["place"], axis=1).all()


def test_the_shared_table_learns_from_both(whole):
    def table(**weights):
        zeros = {name: np.zeros_like(QUESTION[name]) for name in weights}
        return np.asarray(step(PARAMS, QUESTION | zeros)[1]["encoder"]["embedding"]["token"])

    none = table(weights=0, boundary_weights=0)  # the pair's
    ends, own = table(weights=0) - none, table(boundary_weights=0) - none
    assert np.abs(ends).max() > 1e-3 and np.abs(own).max() > 1e-3
    np.testing.assert_allclose(own + ends + none, whole[1]["encoder"]["embedding"]["token"], rtol=1e-3, atol=1e-5)


def test_the_model_never_sees_the_answers(whole):
    (total, _), _ = step(PARAMS, QUESTION | {"tokens": np.zeros_like(QUESTION["tokens"])})
    assert total == whole[0][0]


def test_bfloat16_gives_a_float32_loss_nearby(whole):
    low = span_boundary.build(span_boundary.Config(**FIELDS), model(dtype="bfloat16"), VOCABULARY)
    total, (metrics, _) = jax.jit(lambda p: low.loss(p, QUESTION, None, Carry()))(PARAMS)
    assert total.dtype == metrics["boundary_loss"][0].dtype == jnp.float32
    assert total == pytest.approx(float(whole[0][0]), rel=0.02)


def test_no_array_of_the_step_is_as_large_as_all_scores():
    b, t, v = 4, 16, 1000
    config = transformer.Config(vocab=v, width=8, layers=2, heads=2, mlp=16, max_length=t)
    network = transformer.build(config, Execution())
    objective = span_boundary.build(span_boundary.Config(), network, VOCABULARY)
    question = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in
                prepare(objective, batch([row(t, (words(5), words(6)))] * b)).items()}

    def loss(p, q, key):
        return objective.loss(p, q, key, Carry())[0]

    made = largest(jax.value_and_grad(loss), P.abstract(objective.specs), question, jax.random.key(0))
    assert made < b * t * v / 4


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
    params, question = reference.random_params(objective.specs), prepare(objective, GIVEN)
    total, _ = jax.jit(lambda p: objective.loss(p, question, None, Carry()))(params)
    assert np.isfinite(total)


def test_answers_are_those_of_the_masked_head():
    question = GIVEN | {"tokens": QUESTION["inputs"], "predicted": QUESTION["predicted"]}
    answers = jax.jit(partial(ASKED.predict, k=3))(PARAMS, question)
    _, one, _ = by_hand(PARAMS, QUESTION)
    np.testing.assert_array_equal(answers["words"], np.argsort(-one[..., :V], -1)[..., :3])


class Pieces:
    def id_to_token(self, token):
        return "[MASK]" if token == MASK else f"w{token}"


def test_describe_marks_spans():
    question = {"tokens": np.array([[2, 5, 6, 7, 8, 9, 3, 0]]), "segment_ids": np.array([[1] * 7 + [0]]),
                "inputs": np.array([[2, 5, MASK, MASK, 8, 9, 3, 0]]), "predicted": np.array([[2, 3, 5, 0]]),
                "weights": np.array([[1 / 3, 1 / 3, 1 / 3, 0]]),
                "boundary_weights": np.array([[1 / 3, 1 / 3, 0, 0]])}
    text = "w2 w5 {{w6 w7 -> [MASK] [MASK]}} w8 {w9 = w9} w3"
    assert build().describe(question, Pieces()) == [text]
    pair = {"pair_label": np.array([1]), "pair_weights": np.array([1.0])}
    assert ASKED.describe(question | pair, Pieces()) == ["[pair label 1] " + text]
    del question["boundary_weights"]
    assert build(boundary=False).describe(question, Pieces()) == [text.replace("{{", "{").replace("}}", "}")]
