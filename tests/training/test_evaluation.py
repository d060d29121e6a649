"""The metrics of an objective over batches."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core import params as P
from lmrep.core.errors import RunFault
from lmrep.core.sharding import make_mesh
from lmrep.objectives.base import Carry, Objective
from lmrep.objectives.outputs import normalize_weights
from lmrep.training.evaluation import Evaluator, MetricSums
from lmrep.training.faults import fault_reason
from lmrep.training.state import TrainState
from lmrep.training.step import train_step
from tests.contract import objectives as toys
from tests.objectives import rows

BATCH, LENGTH = 16, 6


def test_means_do_not_depend_on_grouping():
    total, groups = MetricSums(), [MetricSums(), MetricSums()]
    for i in range(6):
        total.add({"a": (np.float32(i), 1), "b": (jnp.float32(2 * i), jnp.int32(i))})
        groups[i % 2].add({"a": (i, 1), "b": (2 * i, i)})
    merged = MetricSums(groups[0].sums)
    merged.add({name: tuple(pair) for name, pair in groups[1].sums.items()})
    assert total.means() == merged.means() == {"a": 2.5, "b": 2.0}
    assert groups[0].sums["a"] == [6.0, 3.0]  # its source does not change


def test_a_metric_with_count_zero_has_no_mean():
    sums = MetricSums()
    sums.add({"counted": (3.0, 2.0), "never": (0.0, 0.0)})
    assert sums.means() == {"counted": 1.5} and MetricSums().means() == {}


def test_sums_keep_their_bits_in_json():
    """Checkpoints hold them as JSON."""
    sums = MetricSums()
    for x in np.random.default_rng(0).normal(size=100):
        sums.add({"a": (x, 1)})
    assert MetricSums(json.loads(json.dumps(sums.sums))).means() == sums.means()


def first_tokens():
    """Counts examples and sums their first tokens; `drawn` is a draw from the example's key."""
    def prepare(keys, batch):
        return batch | {"real": batch["example"] >= 0, "weights": normalize_weights(batch["example"] >= 0),
                        "drawn": jax.vmap(jax.random.uniform)(keys.per_example)}

    def loss(params, batch, key, carry):
        assert key is None  # no dropout
        real = batch["real"]
        first = jnp.where(real, batch["tokens"][:, 0], 0)
        metrics = {"first": (first.sum(), real.sum()), "drawn": ((batch["drawn"] * real).sum(), real.sum())}
        return (first * batch["weights"]).sum(), (metrics, carry)

    specs = {"encoder": {"w": toys.table()}, "objective": {}}
    return Objective("first_tokens", specs=specs, prepare=prepare, loss=loss)


def batches(examples, size=BATCH):
    """All `examples` once, the last batch filled with empty ones."""
    tokens = np.random.default_rng(0).integers(1, toys.V, (examples, LENGTH)).astype(np.int32)
    for start in range(0, examples, size):
        numbers = np.arange(start, start + size)
        real = numbers < examples
        kept = np.where(real, numbers, 0)
        yield {"tokens": np.where(real[:, None], tokens[kept], 0), "segment_ids": np.tile(real[:, None], LENGTH) * 1,
               "example": np.where(real, numbers, -1).astype(np.int32)}


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_every_example_counts_once_and_empty_ones_never(sizes):
    objective = first_tokens()
    evaluator = Evaluator(objective, make_mesh(*sizes), BATCH, seed=0)
    params = P.init(objective.specs, jax.random.key(0))
    metrics = evaluator(params, batches(37))
    firsts = np.concatenate([batch["tokens"][batch["example"] >= 0, 0] for batch in batches(37)])
    assert len(firsts) == 37 and metrics["first"] == pytest.approx(firsts.mean(), rel=1e-7)
    assert metrics["loss"] == pytest.approx(firsts.mean(), rel=1e-6)  # its last batch has 5 examples, not 16
    assert evaluator(params, batches(37)) == metrics


@pytest.mark.parametrize("objective", [first_tokens(), toys.recurrent()], ids=lambda objective: objective.name)
def test_metrics_do_not_depend_on_microbatches(objective):
    params = P.init(objective.specs, jax.random.key(0))
    stream = [batch | {"reset": np.zeros(BATCH, np.int32)} for batch in batches(3 * BATCH)]
    one, several = (Evaluator(objective, make_mesh(2, 1, 1), BATCH, seed=0, microbatches=m)(params, stream)
                    for m in (1, 4))
    assert several == pytest.approx(one, rel=1e-6)


def test_draws_depend_on_the_example_and_the_seed_only():
    objective = first_tokens()
    params = P.init(objective.specs, jax.random.key(0))
    metrics = [Evaluator(objective, make_mesh(1, 1, 1), size, seed=0)(params, batches(37, size)) for size in (BATCH, 8)]
    assert metrics[0]["drawn"] == pytest.approx(metrics[1]["drawn"], rel=1e-6)
    other = Evaluator(objective, make_mesh(1, 1, 1), BATCH, seed=1)(params, batches(37))
    assert other["drawn"] != pytest.approx(metrics[0]["drawn"], rel=1e-6)


@pytest.mark.parametrize("name", [pytest.param("masked", marks=pytest.mark.slow), "causal"])
def test_text_without_targets_is_an_error(name):
    """Words longer than the budget of whole words; texts of one token."""
    case, vocabulary = rows.CASES[name], rows.VOCABULARY
    examples = rows.examples(case, 13)
    if name == "masked":
        case = rows.Case("masked", {"whole_word": True})
        vocabulary = dataclasses.replace(vocabulary, starts_word=np.zeros(vocabulary.size, bool))
    else:
        examples["segment_ids"][:, 1:] = 0
    objective = rows.build(case, vocabulary=vocabulary)
    params, stream = P.init(objective.specs, jax.random.key(0)), list(rows.filled(examples, 13))
    with pytest.raises(RunFault, match=next(iter(objective.terms))):
        Evaluator(objective, make_mesh(1, 1, 1), 13, seed=0)(params, stream)
    optimizer = optax.sgd(1.0)
    state = TrainState(jnp.int32(0), params, optimizer.init(params), objective.carry(13))
    updated, metrics = jax.jit(functools.partial(train_step, objective=objective, optimizer=optimizer, seed=0))(
        state, stream[0], np.float32(np.inf))
    assert metrics["targets"][0] == 0 and "no targets" in fault_reason(0.0, 0.0, np.inf, 0.0)
    jax.tree.map(np.testing.assert_array_equal, updated.params, params)


def test_evaluation_starts_from_the_given_shared_carry():
    """A running statistic that the loss subtracts; without it, evaluation starts from the initial one."""
    def loss(params, batch, key, carry):
        return (batch["weights"] * (batch["tokens"][:, 0] - carry.shared)).sum(), ({}, carry)

    objective = first_tokens()._replace(loss=loss, carry=lambda batch_size: Carry((), jnp.float32(0)))
    evaluator = Evaluator(objective, make_mesh(2, 1, 1), BATCH, seed=0)
    params = P.init(objective.specs, jax.random.key(0))
    plain = evaluator(params, batches(37))["loss"]
    assert evaluator(params, batches(37), jnp.float32(2.5))["loss"] == pytest.approx(plain - 2.5, rel=1e-6)


def test_carry_passes_from_batch_to_batch_and_starts_anew_in_each_evaluation():
    objective = toys.recurrent()
    evaluator = Evaluator(objective, make_mesh(1, 1, 1), BATCH, seed=0)
    params = P.init(objective.specs, jax.random.key(0))

    def stream(reset):
        return [batch | {"reset": np.full(BATCH, reset, np.int32)} for batch in batches(3 * BATCH)]

    kept = evaluator(params, stream(0))
    assert kept["nll"] != evaluator(params, stream(1))["nll"]  # the previous state is used
    assert evaluator(params, stream(0)) == kept  # and none is kept between evaluations
    carry, total = objective.carry(BATCH), 0.0
    for batch in stream(0):
        value, (_, carry) = objective.loss(params, objective.prepare(None, batch), None, carry)
        total += float(value)
    assert kept["loss"] == pytest.approx(total / 3, rel=1e-5)
