"""Four objectives that the trainer does not know train, resume and shard."""

import functools
import json

import jax
import numpy as np
import optax
import pytest

from lmrep.core.sharding import make_mesh
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, EvaluationConfig, LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.metrics_log import MetricsLog
from lmrep.training.stages import Stage
from tests.contract import objectives as toys

BATCH, LENGTH, STEPS = 16, 6, 6
TEACHER = np.random.default_rng(9).normal(size=(toys.V, toys.D)).astype(np.float32)


def host_batches(examples, first, last):
    """Batches that depend on the step only."""
    for step in range(first, last):
        rng = np.random.default_rng(step)
        yield {
            "tokens": rng.integers(1, toys.V, (BATCH, LENGTH)).astype(np.int32)[examples],
            "context": rng.integers(1, toys.V, (BATCH, 4)).astype(np.int32)[examples],
            "segment_ids": np.ones((BATCH, LENGTH), np.int32)[examples],
            "reset": (rng.random(BATCH) < 0.2).astype(np.int32)[examples],
            "example": np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.int32)[examples],
        }


def stage(objective, microbatches=1, name="main", steps=STEPS, **more):
    return Stage(name, steps, objective, optax.adam(0.05), host_batches, BATCH, microbatches,
                 validation=lambda examples: host_batches(examples, 100, 102), schedule=lambda step: 0.05, **more)


@functools.cache
def stages_of(name, microbatches=1):
    if name == "two_stages":
        return [stage(toys.cloze("generator"), microbatches, "generator"),
                stage(toys.cloze("encoder"), microbatches, "encoder", start={"encoder": "objective/generator"})]
    init_values = {"frozen/teacher/token": TEACHER} if name == "distillation" else {}
    return [stage(getattr(toys, name)(), microbatches, init_values=init_values)]


class Killed(Exception):
    pass


COMPILED = {}  # by the identity of the stages and the layout: (the stages, what a trainer has compiled for them)


def train(stages, workdir, layout=(1, 1, 1), *, killed_after=None):
    """Runs, or resumes; with `killed_after`, dies when that step has been logged."""
    workdir.mkdir(exist_ok=True)
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.clean()
    newest = checkpoints.newest()
    metrics = MetricsLog(workdir)
    metrics.resume(newest)
    config = TrainerConfig(CheckpointConfig(every=2), EvaluationConfig(every=3), LogConfig(every=2))
    trainer = Trainer(stages, make_mesh(*layout), 3, RunOutputs(checkpoints, metrics), config)
    _, trainer._compiled = COMPILED.setdefault((id(stages), layout), (stages, trainer._compiled))
    if killed_after is not None:
        write = metrics.write

        def dying(step, split, values):
            write(step, split, values)
            if step > killed_after:
                raise Killed

        metrics.write = dying
    try:
        return trainer.run(newest), [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    finally:
        metrics.close()
        checkpoints.close()


NAMES = ["recurrent", "distillation", "encoder_decoder", "two_stages"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The uninterrupted run of each on one device."""
    return {name: train(stages_of(name), tmp_path_factory.mktemp(name)) for name in NAMES}


def losses(lines, split="train"):
    return np.array([line["loss"] for line in lines if line["split"] == split])


@pytest.mark.parametrize("name", NAMES)
def test_trains(uninterrupted, name):
    _, lines = uninterrupted[name]
    values = losses(lines)[-3:]
    assert len(values) == 3 and values[-1] < values[0]


@pytest.mark.parametrize(("name", "layout", "microbatches"), [
    ("recurrent", (2, 2, 2), 2), pytest.param("two_stages", (1, 4, 2), 4, marks=pytest.mark.slow),
    *(pytest.param(name, (2, 2, 2), 2, marks=pytest.mark.slow) for name in ("distillation", "encoder_decoder"))])
def test_every_mesh_and_microbatch_count_gives_the_same_losses(uninterrupted, tmp_path, name, layout, microbatches):
    _, expected = uninterrupted[name]
    _, lines = train(stages_of(name, microbatches), tmp_path, layout)
    np.testing.assert_allclose(losses(lines), losses(expected), rtol=1e-5)
    np.testing.assert_allclose(losses(lines, "validation"), losses(expected, "validation"), rtol=1e-5)


@pytest.mark.parametrize(("name", "killed_after"), [
    ("recurrent", 4), ("distillation", 1), ("encoder_decoder", 4), ("two_stages", 7)])
def test_a_killed_and_resumed_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path, name, killed_after):
    state, expected = uninterrupted[name]
    with pytest.raises(Killed):
        train(stages_of(name), tmp_path, killed_after=killed_after)
    resumed, lines = train(stages_of(name), tmp_path)
    assert lines == expected
    jax.tree.map(np.testing.assert_array_equal, resumed, state)


def test_a_frozen_teacher_does_not_change(uninterrupted):
    state, _ = uninterrupted["distillation"]
    np.testing.assert_array_equal(state.params["frozen"]["teacher"]["token"], TEACHER)
    moved = jax.tree.leaves(state.opt_state[0].mu)
    assert len(moved) == 1 and np.abs(moved[0]).max() > 0  # no moments for the teacher


def test_carry_stays_with_its_example(uninterrupted, tmp_path):
    """The carry after training does not depend on the number of microbatches."""
    state, _ = uninterrupted["recurrent"]
    split, _ = train(stages_of("recurrent", 4), tmp_path)
    np.testing.assert_allclose(split.carry.per_example, state.carry.per_example, rtol=1e-4, atol=1e-6)
    assert (state.carry.shared, split.carry.shared) == (STEPS, 4 * STEPS)
