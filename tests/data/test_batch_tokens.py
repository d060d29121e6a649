"""Batches of labelled examples with a limited number of tokens."""

import itertools

import jax
import numpy as np
import pytest

from lmrep.core.sharding import batch_sharding, make_mesh
from lmrep.data import loader
from lmrep.data.records.examples import arrange
from lmrep.training.inputs import local_indices, to_global
from tests.data.test_mixed_examples import units
from tests.tasks import tiny

LIMIT, SIZE = 192, 24


@pytest.fixture(scope="module")
def examples():
    return arrange(units(301, 0), tiny.tokenizer().vocabulary, 0, "", batch_tokens=LIMIT)


def run(plan, first=0, last=None, indices=None, multiple=1, seed=3):
    """The batches of some steps, by default of the first epoch."""
    last = plan.steps_per_epoch(SIZE) if last is None else last
    indices = np.arange(SIZE) if indices is None else indices
    return list(loader.batches(plan, batch_size=SIZE, indices=indices, seed=seed, first_step=first, last_step=last,
                               multiple=multiple))


def test_every_epoch_shows_every_example_once_within_the_limit(examples):
    steps = examples.steps_per_epoch(SIZE)
    orders = []
    for epoch in range(3):
        batches = run(examples, epoch * steps, (epoch + 1) * steps)
        shown = np.concatenate([batch["example"] for batch in batches])
        assert sorted(shown[shown >= 0].tolist()) == list(range(301))
        for batch in batches:
            rows, length = batch["source"]["tokens"].shape
            assert rows == min(SIZE, LIMIT // max(length, batch["tokens"].shape[1])) and rows * length <= LIMIT
        orders.append(shown.tolist())
    assert orders[0] != orders[1] != orders[2]


def test_few_sequences_are_empty_and_few_tokens_are_padding(examples):
    """The last batch alone is not full; without the limit, batches have as many sequences of any length."""
    batches = run(examples)
    assert sum((batch["example"] < 0).any() for batch in batches) <= 1
    assert {len(batch["example"]) for batch in batches} == {3, 4, 6, 8, 12, 24}
    assert examples.sequences_per_step(SIZE) == pytest.approx(301 / len(batches))


def test_the_position_alone_determines_the_batch(examples):
    full = [batch["example"].tolist() for batch in run(examples, 0, 90)]
    assert [batch["example"].tolist() for batch in run(examples, 47, 90)] == full[47:]
    other = arrange(units(301, 0), tiny.tokenizer().vocabulary, 0, "", batch_tokens=LIMIT)
    assert [batch["example"].tolist() for batch in run(other, 60, 90)] == full[60:]
    assert [batch["example"].tolist() for batch in run(examples, 0, 90, seed=4)] != full


@pytest.mark.parametrize("shards, microbatches", [(1, 2), (8, 3)])
def test_meshes_and_microbatches_get_the_same_examples_and_a_multiple_of_sequences(examples, shards, microbatches):
    sharding = batch_sharding(make_mesh(shards, 1, 1, devices=jax.devices()[:shards]))
    indices, multiple = local_indices(sharding, SIZE), shards * microbatches
    for one, other in zip(run(examples), run(examples, indices=indices, multiple=multiple), strict=True):
        size = -(-len(one["example"]) // multiple) * multiple
        placed = to_global(other, indices, sharding, SIZE)
        assert placed["tokens"].shape == (size, *one["tokens"].shape[1:])
        np.testing.assert_array_equal(placed["example"][: len(one["example"])], one["example"])
        assert (np.asarray(placed["example"])[len(one["example"]):] < 0).all()


@pytest.mark.parametrize("hosts", [[[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0], [1], [2], [3]]], ids=str)
def test_hosts_have_the_shards_of_a_smaller_batch_that_they_have_of_the_full_one(examples, hosts):
    shards, microbatches = 4, 2

    def of(parts, size):
        return np.concatenate([np.arange(part * size, (part + 1) * size) for part in parts])

    full = run(examples, multiple=shards * microbatches)
    for parts in hosts:
        own = run(examples, indices=of(parts, SIZE // shards), multiple=shards * microbatches)
        for whole, mine in zip(full, own, strict=True):
            np.testing.assert_array_equal(mine["tokens"], whole["tokens"][of(parts, len(whole["tokens"]) // shards)])
    assert sorted(itertools.chain(*hosts)) == [0, 1, 2, 3]


def test_grouped_units_count_as_their_tokens():
    plain = units(300, 1)
    own = plain._replace(source=None, example=np.repeat(np.arange(100, dtype=np.int32), 3))
    grouped = arrange(own, tiny.tokenizer().vocabulary, 0, "", group=3, batch_tokens=96)
    for batch in run(grouped):
        assert batch["tokens"].shape[0] == 96 // (3 * batch["tokens"].shape[2])
