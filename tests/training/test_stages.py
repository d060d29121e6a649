"""Runs of several stages: where each begins, what it starts from, and that one goes on where the other ends."""

import jax
import numpy as np
import optax
import pytest

from lmrep import api
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.core.sharding import make_mesh
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage, check, copy_params, locate_stage, schedule_start, set_params
from tests import small
from tests.contract import objectives as toys

ROWS = 16


def host_batches(rows, first, last):
    """Batches that depend on the step alone."""
    for step in range(first, last):
        tokens = np.random.default_rng(step).integers(1, toys.V, (ROWS, 6)).astype(np.int32)
        yield {"tokens": tokens[rows], "segment_ids": np.ones_like(tokens)[rows],
               "example": np.arange(step * ROWS, (step + 1) * ROWS, dtype=np.int32)[rows]}


def stage(steps, after=0, part="encoder", **more):
    """A stage on the batches after the first `after` ones; its optimizer has moments and a schedule of 8 steps."""
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.0, 8))
    return Stage("main", steps, toys.cloze(part), optimizer,
                 lambda rows, first, last: host_batches(rows, after + first, after + last), ROWS, **more)


def train(stages, workdir, resumed=None):
    """The last state of a run that saves every step."""
    checkpoints = Checkpoints(workdir, keep=99)
    try:
        config = TrainerConfig(CheckpointConfig(every=1))
        return Trainer(stages, make_mesh(1, 1, 1), 0, RunOutputs(checkpoints), config).run(resumed)
    finally:
        checkpoints.close()


def equal(state, expected):
    jax.tree.map(np.testing.assert_array_equal, state, expected)


# Where a stage begins


def test_a_step_belongs_to_the_stage_that_does_its_update():
    run = [stage(3), stage(2), stage(1)]
    assert [locate_stage(run, step) for step in range(7)] == [(0, 0)] * 3 + [(1, 3)] * 2 + [(2, 5)] * 2


def test_the_optimizer_counts_from_the_first_of_the_stages_that_go_on():
    run = [stage(3), stage(2), stage(4, start={"encoder": "encoder"}), stage(1)]
    assert [schedule_start(run, i) for i in range(4)] == [0, 0, 5, 5]


# What it starts from


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The state after eight steps of one stage."""
    return train([stage(8)], tmp_path_factory.mktemp("whole"))


def test_stages_that_go_on_are_one_run_cut_in_two(whole, tmp_path):
    """Parameters, moments and the place in the schedule."""
    equal(train([stage(3), stage(5, after=3)], tmp_path), whole)


@pytest.mark.parametrize("resumed", [2, 3, 4])
def test_a_run_resumes_before_at_and_after_a_border(whole, tmp_path, resumed):
    run = [stage(3), stage(5, after=3)]
    train(run, tmp_path)
    equal(train(run, tmp_path, resumed), whole)


def test_a_stage_that_starts_elsewhere_has_fresh_moments_and_its_own_count(tmp_path):
    state = train([stage(3), stage(5, after=3, start={"encoder": "encoder"})], tmp_path)
    assert state.step == 8 and state.opt_state[0].count == 5
    before, after = (Checkpoints(tmp_path).read(step)[0] for step in (3, 4))
    moved = np.abs(after["params"]["encoder"]["token"] - before["params"]["encoder"]["token"])
    np.testing.assert_allclose(moved, 0.1, rtol=1e-3)  # Adam's very first step: the whole rate, whatever the gradient


def test_two_parts_may_start_from_one(tmp_path):
    """Each has its own memory, of which a step makes the next state."""
    both = {"encoder": "objective/generator", "objective/generator": "objective/generator"}
    state = train([stage(3, part="generator"), stage(2, after=3, part="generator", start=both)], tmp_path)
    former = Checkpoints(tmp_path).read(3)[0]["params"]["objective"]["generator"]
    jax.tree.map(np.testing.assert_array_equal, state.params["encoder"], former)  # which has no gradient here
    assert state.step == 5 and np.any(state.params["objective"]["generator"]["token"] != former["token"])


def tree(*shape):
    return {"encoder": {"a": np.full(shape, 1.0), "ab": np.full(shape, 2.0)},
            "objective": {"g": {"a": np.full(shape, 3.0)}}}


def test_overlay_takes_what_is_named_and_leaves_the_rest():
    fresh = jax.tree.map(np.zeros_like, tree(2))
    found = copy_params(fresh, tree(2), {"encoder/a": "objective/g/a"})
    assert found["encoder"]["a"][0] == 3 and found["encoder"]["ab"][0] == 0 and found["objective"]["g"]["a"][0] == 0
    assert copy_params(fresh, tree(2), {"encoder": "encoder"})["encoder"]["ab"][0] == 2
    whole = copy_params(fresh, tree(2), {"": ""})
    jax.tree.map(np.testing.assert_array_equal, whole, tree(2))


@pytest.mark.parametrize(("start", "message"), [
    ({"decoder": "encoder"}, r"no parameters under 'decoder'; there are encoder/a, encoder/ab, objective/g"),
    ({"encoder": "generator"}, r"'encoder/a' should start from 'generator/a', which the stage before lacks"),
    ({"encoder/": "encoder"}, "no parameters under 'encoder/'"),
])
def test_a_start_that_names_nothing(start, message):
    with pytest.raises(UserError, match=message):
        copy_params(tree(2), tree(2), start)


def test_values_of_another_shape_or_place_are_refused():
    with pytest.raises(UserError, match=r"'encoder/a' is \(2,\), and 'objective/g/a', .* start from, \(3,\); make "
                                        "'encoder/a' and 'objective/g/a' of one size"):
        copy_params(tree(2), tree(3), {"encoder/a": "objective/g/a"})
    with pytest.raises(UserError, match=r"'encoder/a' is \(2,\), and should start from a value of \(3,\)"):
        set_params(tree(2), {"encoder/a": np.zeros(3)})
    with pytest.raises(UserError, match=r"no parameter 'encoder/aa' to start from .* did you mean 'encoder/a"):
        set_params(tree(2), {"encoder/aa": np.zeros(2)})


# BERT's two lengths


def test_stages_that_cannot_follow_each_other_are_found_before_the_first_step():
    check([stage(3), stage(2), stage(4, start={"encoder": "encoder"})])
    changed = Stage("tuned", 2, toys.cloze("encoder"), optax.sgd(0.1), stage(2).batches, ROWS)
    with pytest.raises(UserError, match=r"stage 'tuned' goes on from 'main', but .*; give it a start"):
        check([stage(3), changed])
    with pytest.raises(UserError, match="there are no parameters under 'nowhere'"):
        check([stage(3), stage(2, start={"nowhere": "encoder"})])
    with pytest.raises(UserError, match=r"should start from 'objective/.*', which the stage before lacks"):
        check([stage(3), stage(2, start={"encoder": "objective"})])


def test_bert_goes_from_short_rows_to_long_ones(tmp_path):
    config = small.config(small.corpus(tmp_path / "texts"))
    config.unlock()
    config.data.validation = 0
    config.steps, config.stages = 8, ({"name": "16", "fraction": 0.75, "length": 16}, {"name": "32", "fraction": 0.25})
    api.train(config, tmp_path / "run", data_dir=tmp_path / "data")
    lines = small.lines(tmp_path / "run", "train")
    a_step = np.diff([0, *(line["tokens"] for line in lines)])
    assert (a_step[:6] <= 16 * 16).all() and (a_step[6:] > 16 * 16).all() and (a_step[6:] <= 16 * 32).all()
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, 1e-3 * (1 - np.arange(8) / 8), rtol=1e-6)  # one schedule through both
    state, _ = Checkpoints(tmp_path / "run/checkpoints").read(8, "opt_state")
    counts = [leaf for path, leaf in flatten(state).items() if path.endswith("count")]
    assert counts and all(count == 8 for count in counts)  # and one optimizer
