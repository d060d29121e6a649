"""The metrics of an objective over batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.sharding import make_mesh
from lmrep.objectives.base import Objective, normalize_weights
from lmrep.training.evaluation import Evaluator, MetricSums
from tests.contract import objectives as toys

ROWS, LENGTH = 16, 6


def test_sums_group_in_any_way():
    whole, parts = MetricSums(), [MetricSums(), MetricSums()]
    for i in range(6):
        whole.add({"a": (np.float32(i), 1), "b": (jnp.float32(2 * i), jnp.int32(i))})
        parts[i % 2].add({"a": (i, 1), "b": (2 * i, i)})
    joined = MetricSums(parts[0].sums)
    joined.add({name: tuple(pair) for name, pair in parts[1].sums.items()})
    assert whole.means() == joined.means() == {"a": 2.5, "b": 2.0}
    assert parts[0].sums["a"] == [6.0, 3.0]  # what it was joined from stays as it was


def test_what_nothing_was_counted_for_has_no_mean():
    sums = MetricSums()
    sums.add({"asked": (3.0, 2.0), "never": (0.0, 0.0)})
    assert sums.means() == {"asked": 1.5} and MetricSums().means() == {}


def test_sums_survive_json_to_the_last_bit():
    """As a checkpoint keeps them."""
    import json

    sums = MetricSums()
    for x in np.random.default_rng(0).normal(size=100):
        sums.add({"a": (x, 1)})
    assert MetricSums(json.loads(json.dumps(sums.sums))).means() == sums.means()


def rows_objective():
    """Counts rows that hold something, and adds up their first token; a question is a draw of the example's key."""
    def prepare(keys, batch):
        return batch | {"real": batch["example"] >= 0, "weights": normalize_weights(batch["example"] >= 0),
                        "drawn": jax.vmap(jax.random.uniform)(keys.per_example)}

    def loss(params, batch, key, carry):
        assert key is None  # no dropout
        real = batch["real"]
        first = jnp.where(real, batch["tokens"][:, 0], 0)
        metrics = {"first": (first.sum(), real.sum()), "drawn": ((batch["drawn"] * real).sum(), real.sum())}
        return (first * batch["weights"]).sum(), (metrics, carry)

    return Objective("rows", specs={"encoder": {"w": toys.table()}, "objective": {}}, prepare=prepare, loss=loss)


def batches(examples, rows=ROWS):
    """All `examples` once, in batches filled up with empty rows."""
    tokens = np.random.default_rng(0).integers(1, toys.V, (examples, LENGTH)).astype(np.int32)
    for start in range(0, examples, rows):
        numbers = np.arange(start, start + rows)
        real = numbers < examples
        kept = np.where(real, numbers, 0)
        yield {"tokens": np.where(real[:, None], tokens[kept], 0), "segment_ids": np.tile(real[:, None], LENGTH) * 1,
               "example": np.where(real, numbers, -1).astype(np.int32)}


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1), (2, 2, 2)], ids=str)
def test_every_row_counts_alike_and_empty_ones_not_at_all(sizes):
    asked = rows_objective()
    evaluator = Evaluator(asked, make_mesh(*sizes), ROWS, seed=0)
    params = P.init(asked.specs, jax.random.key(0))
    found = evaluator(params, batches(37))
    firsts = np.concatenate([batch["tokens"][batch["example"] >= 0, 0] for batch in batches(37)])
    assert len(firsts) == 37 and found["first"] == pytest.approx(firsts.mean(), rel=1e-7)
    means = [firsts[i : i + ROWS].mean() for i in range(0, 37, ROWS)]
    assert found["loss"] == pytest.approx(np.mean(means), rel=1e-6)
    assert evaluator(params, batches(37)) == found


@pytest.mark.parametrize("asked", [rows_objective(), toys.recurrent()], ids=lambda objective: objective.name)
def test_microbatches_change_nothing(asked):
    params = P.init(asked.specs, jax.random.key(0))
    stream = [batch | {"reset": np.zeros(ROWS, np.int32)} for batch in batches(3 * ROWS)]
    whole, parts = (Evaluator(asked, make_mesh(2, 1, 1), ROWS, seed=0, microbatches=m)(params, stream) for m in (1, 4))
    assert parts == pytest.approx(whole, rel=1e-6)


def test_questions_do_not_depend_on_how_examples_are_batched():
    asked = rows_objective()
    params = P.init(asked.specs, jax.random.key(0))
    found = [Evaluator(asked, make_mesh(1, 1, 1), rows, seed=0)(params, batches(37, rows)) for rows in (ROWS, 8)]
    assert found[0]["drawn"] == pytest.approx(found[1]["drawn"], rel=1e-6)
    other = Evaluator(asked, make_mesh(1, 1, 1), ROWS, seed=1)(params, batches(37))
    assert other["drawn"] != pytest.approx(found[0]["drawn"], rel=1e-6)


def test_carry_goes_from_batch_to_batch_and_starts_clean_each_time():
    asked = toys.recurrent()
    evaluator = Evaluator(asked, make_mesh(1, 1, 1), ROWS, seed=0)
    params = P.init(asked.specs, jax.random.key(0))

    def stream(reset):
        return [batch | {"reset": np.full(ROWS, reset, np.int32)} for batch in batches(3 * ROWS)]

    kept = evaluator(params, stream(0))
    assert kept["nats"] != evaluator(params, stream(1))["nats"]  # the state before is seen
    assert evaluator(params, stream(0)) == kept  # and none is left from one evaluation to the next
    carry, total = asked.carry(ROWS), 0.0
    for batch in stream(0):
        value, (_, carry) = asked.loss(params, asked.prepare(None, batch), None, carry)
        total += float(value)
    assert kept["loss"] == pytest.approx(total / 3, rel=1e-5)
