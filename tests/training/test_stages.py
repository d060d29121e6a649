"""Runs of several stages: where each begins, what it starts from, and that it continues where the previous one ends."""

import functools

import jax
import numpy as np
import optax
import pytest

from lmrep import api
from lmrep.core.params import flatten
from lmrep.core.sharding import make_mesh
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage, copy_params, locate_stage, schedule_start
from tests import small
from tests.contract import objectives as toys

BATCH = 16
CLOZE = functools.cache(toys.cloze)  # runs of one objective share their programs
ADAM = optax.adam(optax.linear_schedule(0.1, 0.0, 8))


def host_batches(rows, first, last):
    """Batches that depend on the step only."""
    for step in range(first, last):
        tokens = np.random.default_rng(step).integers(1, toys.V, (BATCH, 6)).astype(np.int32)
        yield {"tokens": tokens[rows], "segment_ids": np.ones_like(tokens)[rows],
               "example": np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.int32)[rows]}


def stage(steps, after=0, part="encoder", **more):
    """A stage on the batches after the first `after` ones; its optimizer has moments and a schedule of 8 steps."""
    return Stage("main", steps, CLOZE(part), ADAM,
                 lambda rows, first, last: host_batches(rows, after + first, after + last), BATCH, **more)


def train(stages, workdir, resumed=None):
    """The last state of a run that saves every step."""
    checkpoints = Checkpoints(workdir, keep=99)
    try:
        config = TrainerConfig(CheckpointConfig(every=1))
        return Trainer(stages, make_mesh(1, 1, 1), 0, RunOutputs(checkpoints), config).run(resumed)
    finally:
        checkpoints.close()


def assert_equal(state, expected):
    jax.tree.map(np.testing.assert_array_equal, state, expected)


# Where a stage begins


def test_a_step_belongs_to_the_stage_that_does_its_update():
    run = [stage(3), stage(2), stage(1)]
    assert [locate_stage(run, step) for step in range(7)] == [(0, 0)] * 3 + [(1, 3)] * 2 + [(2, 5)] * 2


def test_the_optimizer_counts_over_stages_that_continue():
    run = [stage(3), stage(2), stage(4, start={"encoder": "encoder"}), stage(1)]
    assert [schedule_start(run, i) for i in range(4)] == [0, 0, 5, 5]


# What it starts from


def test_two_stages_that_continue_equal_one_and_resume_before_at_and_after_their_boundary(tmp_path):
    """Parameters, moments and the position in the schedule."""
    expected, stages = train([stage(8)], tmp_path / "one"), [stage(3), stage(5, after=3)]
    for resumed in (None, 4, 3, 2):
        assert_equal(train(stages, tmp_path / "two", resumed), expected)


def test_a_stage_that_starts_elsewhere_has_fresh_moments_and_its_own_count(tmp_path):
    state = train([stage(3), stage(5, after=3, start={"encoder": "encoder"})], tmp_path)
    assert state.step == 8 and state.opt_state[0].count == 5
    before, after = (Checkpoints(tmp_path).read(step)[0] for step in (3, 4))
    moved = np.abs(after["params"]["encoder"]["token"] - before["params"]["encoder"]["token"])
    np.testing.assert_allclose(moved, 0.1, rtol=1e-3)  # Adam's first step is the full rate, whatever the gradient


def test_two_subtrees_may_start_from_one(tmp_path):
    """Each gets its own buffers, since a step donates them."""
    both = {"encoder": "objective/generator", "objective/generator": "objective/generator"}
    state = train([stage(3, part="generator"), stage(2, after=3, part="generator", start=both)], tmp_path)
    previous = Checkpoints(tmp_path).read(3)[0]["params"]["objective"]["generator"]
    assert_equal(state.params["encoder"], previous)  # which has no gradient here
    assert state.step == 5 and np.any(state.params["objective"]["generator"]["token"] != previous["token"])


def tree(*shape):
    return {"encoder": {"a": np.full(shape, 1.0), "ab": np.full(shape, 2.0)},
            "objective": {"g": {"a": np.full(shape, 3.0)}}}


def test_copy_params_copies_the_named_paths_only():
    fresh = jax.tree.map(np.zeros_like, tree(2))
    params = copy_params(fresh, tree(2), {"encoder/a": "objective/g/a"})
    assert params["encoder"]["a"][0] == 3 and params["encoder"]["ab"][0] == 0 and params["objective"]["g"]["a"][0] == 0
    assert copy_params(fresh, tree(2), {"encoder": "encoder"})["encoder"]["ab"][0] == 2
    assert_equal(copy_params(fresh, tree(2), {"": ""}), tree(2))


@pytest.mark.slow
def test_bert_trains_on_short_and_then_on_long_sequences(tmp_path):
    config = small.config(small.corpus(tmp_path / "texts"))
    config.unlock()
    config.model.layers, config.evaluation.every = 1, 1
    config.steps, config.stages = 8, ({"name": "16", "fraction": 0.75, "length": 16}, {"name": "32", "fraction": 0.25})
    outcome = api.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    [_, before, after] = small.lines(tmp_path / "run", "validation")[-3:]  # of steps 6, 7 and 8
    assert outcome.before_step == 7 and before == before | outcome.before and after == after | outcome.after
    lines = small.lines(tmp_path / "run", "train")
    per_step = np.diff([0, *(line["tokens"] for line in lines)])
    assert (per_step[:6] <= 16 * 16).all() and (per_step[6:] > 16 * 16).all() and (per_step[6:] <= 16 * 32).all()
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, 1e-3 * (1 - np.arange(8) / 8), rtol=1e-6)  # one schedule through both
    state, _ = Checkpoints(tmp_path / "run/checkpoints").read(8, "opt_state")
    counts = [leaf for path, leaf in flatten(state).items() if path.endswith("count")]
    assert counts and all(count == 8 for count in counts)  # and one optimizer
