"""What holds for every objective: sums over microbatches and devices are those of the whole batch, draws belong to the
key of their example, weights are normalised, and metrics are those of the row."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core.params import flatten
from lmrep.core.sharding import batch_sharding, make_mesh, use_mesh
from lmrep.layers import dropout
from lmrep.metrics import is_token_loss
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Keys
from lmrep.training.evaluation import MetricSums
from lmrep.training.state import TrainState, layout, trainable
from lmrep.training.step import compiled_train_step, evaluation_step, prepare_keys
from tests.objectives import rows
from tests.objectives.rows import CASES, ROWS
from tests.programs import equations

B = 8
OPTIMIZER = optax.sgd(1.0)
# they draw nothing for an example
DETERMINISTIC = ("causal", "bidirectional", "causal_distillation", "sequence_autoencoder")


def cases(quick, names=CASES):
    return pytest.mark.parametrize("name", [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names])


every = cases(ROWS)
traced = cases(("masked", "replaced_token", "permutation", "bidirectional"))
some = cases(("masked",), ROWS)  # compiling a step takes seconds; a variant has the sums of its row
validated = cases(("masked", "causal", "replaced_token"), [
    name for name in CASES if not name.startswith(("span_corruption, ", "masked, w", "masked, s"))])


# Sums


def stepped(name, sizes=(1, 1, 1), microbatches=1, rate=0.0):
    """(the gradient of every trainable parameter by path, metrics, the carry) of a step."""
    case = CASES[name]
    objective = rows.build(case, rate)
    params, mesh = rows.params(objective), make_mesh(*sizes)
    step = compiled_train_step(objective, OPTIMIZER, mesh, B, 0, microbatches)
    with use_mesh(mesh):
        state = TrainState(np.int32(3), params, OPTIMIZER.init(trainable(params)), rows.carry(objective, B))
        state = jax.device_put(state, layout(objective, OPTIMIZER, B, mesh))
        state, metrics = step(state, jax.device_put(rows.stream(case, B), batch_sharding(mesh)))
    state, metrics = jax.device_get((state, metrics))
    before, after = flatten(params), flatten(state.params)
    for path in before.keys() - flatten(trainable(params)):
        np.testing.assert_array_equal(after[path], before[path], path)  # a frozen part
    return {path: before[path] - after[path] for path in flatten(trainable(params))}, metrics, state.carry


@functools.cache
def whole(name):
    """`stepped`, of the whole batch on one device."""
    return stepped(name)


def assert_close(found, expected):
    """Compares what `stepped` returned."""
    gradients, metrics, carries = zip(found, expected, strict=True)
    assert gradients[0].keys() == gradients[1].keys() and metrics[0].keys() == metrics[1].keys()
    for path, value in gradients[1].items():
        np.testing.assert_allclose(gradients[0][path], value, rtol=1e-4, atol=1e-5, err_msg=path)
    for metric in metrics[0]:
        np.testing.assert_allclose(metrics[0][metric], metrics[1][metric], rtol=1e-5, err_msg=metric)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), *carries)


@some
def test_microbatches_and_meshes_sum_to_the_whole_batch(name, capfd, no_compilation_cache):
    """Loss, metrics, gradients and what is carried on, without a warning of the partitioner."""
    assert_close(stepped(name, (2, 2, 2), 2), whole(name))
    assert not re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.slow
def test_dropout_does_not_depend_on_the_mesh():
    """Of two networks. Here the mesh divides parameters and sequences."""
    assert_close(stepped("replaced_token", (1, 2, 1, 4), rate=0.2), stepped("replaced_token", rate=0.2))


@some
def test_a_step_measures_what_the_row_names_and_every_parameter_learns(name):
    gradient, metrics, _ = whole(name)
    row = OBJECTIVES[CASES[name].objective]
    assert {"loss", "gradient_norm", "tokens", "targets"} < metrics.keys()
    assert metrics.keys() - {"loss", "gradient_norm", "tokens", "targets"} <= row.metrics.keys()
    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradient.values()))
    assert np.isfinite(norm) and metrics["gradient_norm"][0] == pytest.approx(norm, rel=1e-4)
    still = {path for path, g in gradient.items() if not np.any(g)}
    assert all(path.endswith("key/bias") for path in still)  # a softmax does not depend on them


# Draws


@functools.cache
def preparing(name):
    """The jitted `prepare` of a case, the batch, and what it makes of it with the first keys."""
    case = CASES[name]
    prepare, batch = jax.jit(rows.build(case).prepare), rows.stream(case, B)
    return prepare, batch, jax.device_get(prepare(rows.keys(B), batch))


@every
def test_weights_are_normalised_and_padding_has_none(name):
    prepared = preparing(name)[-1]
    weights = {field: x for field, x in flatten(prepared).items() if field.endswith("weights")}
    assert weights
    for field, x in weights.items():
        total, used = 1.0, (x > 0).sum()
        if CASES[name].objective == "bidirectional":
            total = 0.5  # of each direction
        if field == "boundary_weights":
            total = used / (used + 1)  # as released
        assert x.sum(dtype=np.float64) == pytest.approx(total, rel=1e-5) and used, field
        assert (x >= 0).all() and not x[-1].any(), field  # the last example is empty
    if "predicted" in prepared:
        at = np.take_along_axis(prepared["segment_ids"], prepared["predicted"], 1)
        assert (at[prepared["weights"] > 0] > 0).all()


def differing(prepared, other):
    """The fields in which two prepared batches differ, but for the size of weights."""
    flat, more = (flatten(each) for each in (prepared, other))
    assert flat.keys() == more.keys()
    return {field for field in flat if (
        (flat[field] > 0) != (more[field] > 0) if field.endswith("weights") else flat[field] != more[field]).any()}


@every
def test_draws_belong_to_the_key_of_their_example(name):
    """Another key changes what is drawn for its example and for no other; the shared key, what is shared."""
    prepare, batch, first = preparing(name)
    jax.tree.map(np.testing.assert_array_equal, first, jax.device_get(prepare(rows.keys(B), batch)))
    keys, others = rows.keys(B), rows.keys(B, 7)
    shared = jax.device_get(prepare(Keys(keys.per_example, others.shared), batch))
    assert all(field.startswith("shared/") for field in differing(first, shared))
    assert bool(differing(first, shared)) == ("shared" in first)
    drawn = jax.device_get(prepare(Keys(others.per_example, keys.shared), batch))
    assert bool(differing(first, drawn)) == (CASES[name].objective not in DETERMINISTIC)
    if CASES[name].fields.get("draw") == "batch":  # it ranks the draws of all examples together
        return
    half = np.arange(B) < B // 2
    mixed = Keys(jnp.where(half, others.per_example, keys.per_example), keys.shared)
    mixed = jax.device_get(prepare(mixed, batch))
    for part, expected in ((half, drawn), (~half, first)):
        fields = [{field: x for field, x in each.items() if field != "shared"} for each in (mixed, expected)]
        assert not differing(*jax.tree.map(lambda x, part=part: x[part], fields))


@pytest.fixture
def checked_dropout(monkeypatch):
    """Dropout draws from JAX's generator, which counts as a use of its key; a hash of the key's data does not."""
    monkeypatch.setattr(dropout, "_hash", lambda key, number: jax.random.bits(key, number.shape))


@traced
def test_no_key_is_used_twice(name, checked_dropout):
    """In `prepare` and a loss with dropout, by JAX's own check. (Backward passes repeat draws of the forward pass.)"""
    case = CASES[name]
    objective = rows.build(case, 0.1)

    def forward(params, batch, key):
        batch = objective.prepare(prepare_keys(objective, batch, 0, jnp.int32(0)), batch)
        return objective.loss(params, batch, key, objective.carry(B))[0]

    with jax.debug_key_reuse(True):
        jax.jit(forward).trace(rows.params(objective), rows.stream(case, B), jax.random.key(0))


@traced
def test_a_loss_has_dropout_with_a_key_alone(name, checked_dropout):
    objective, batch = rows.build(CASES[name], 0.1), preparing(name)[-1]
    for key in (None, jax.random.key(0)):
        drawn = [equation for equation in equations(
            lambda key: objective.loss(rows.params(objective), batch, key, objective.carry(B))[0], key)
            if equation.primitive.name == "random_bits"]
        assert bool(drawn) == (key is not None)


# Validation


@validated
def test_validation_does_not_depend_on_the_batches(name):
    """All metrics of 13 examples of different lengths, in two batches and in three, which empty examples fill up. The
    loss of a batch is the weighted sum of the objective's terms."""
    case = CASES[name]
    objective, row, examples = rows.build(case), OBJECTIVES[case.objective], rows.examples(case, 13)
    params, carry = rows.params(objective), objective.carry(B)
    step = jax.jit(functools.partial(evaluation_step, objective=objective, seed=0))

    def means(*ends):
        sums = MetricSums()
        for start, end in zip((0, *ends), ends, strict=False):
            batch, = rows.filled(jax.tree.map(lambda x, a=start, b=end: x[a:b], examples), B)
            metrics, _ = jax.device_get(step(params, batch, carry))
            total, number = metrics.pop("loss")
            terms = {metric: weight * metrics[metric][0] / metrics[metric][1]
                     for metric, weight in objective.terms.items()}
            if "boundary_loss" in terms:  # as released, it is divided by one more than its number of tokens
                terms["boundary_loss"] *= metrics["boundary_loss"][1] / (metrics["boundary_loss"][1] + 1)
            assert number == end - start and terms and total / number == pytest.approx(sum(terms.values()), rel=1e-5)
            sums.add(metrics)
        return sums.means()

    measured = means(8, 13)
    assert measured == pytest.approx(means(4, 9, 13), rel=1e-5)
    assert {metric for metric, about in row.metrics.items() if not about.optional} <= measured.keys()
    assert measured.keys() <= row.metrics.keys() and set(row.teachers) == set(objective.frozen)
    for about in map(row.metrics.get, objective.terms):
        assert about.baseline or is_token_loss(about), about  # NO_BASELINE is one that is named
