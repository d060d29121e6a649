"""Training by permutation language modelling with a memory: meshes, microbatches, resumed runs."""

import contextlib
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from lmrep.core.sharding import make_mesh
from lmrep.models import transformer_xl
from lmrep.objectives import masked, permutation
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, EvaluationConfig, LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage
from tests.objectives.test_permutation import VOCABULARY, XLNET, M, windows
from tests.objectives.toys import V

LENGTH, BATCH_SIZE, STEPS = 16, 16, 6
STREAM = np.random.default_rng(0).integers(5, 15, (BATCH_SIZE, STEPS * LENGTH)).astype(np.int32)
WIDE = replace(XLNET, vocab=V, width=16, heads=4, mlp=32)


def host_batches(indices, first, last):
    for step, window in zip(range(first, last), list(windows(STREAM[indices], LENGTH))[first:last], strict=True):
        yield window | {"example": indices.astype(np.int32) + BATCH_SIZE * step,
                        "reversed": (indices >= BATCH_SIZE // 2).astype(np.int32)}


def train(network, sizes=(1, 1, 1), microbatches=1):
    """(the loss of each step, that of each evaluation, the memory after the last step)."""
    objective = permutation.build(permutation.Config(k=3.0), transformer_xl.build(network), VOCABULARY)
    lines = {"train": [], "validation": []}
    log = SimpleNamespace(write=lambda step, split, values: lines[split].append(values["loss"]),
                          timing=lambda *_: None, flush=lambda: None, keep_faults=lambda number: None)
    checkpoints = SimpleNamespace(save=lambda *_: None, wait=lambda: None, check=lambda: None)
    stage = Stage("main", STEPS, objective, optax.adam(0.01), host_batches, BATCH_SIZE, microbatches,
                  validation=lambda indices: host_batches(indices, 0, 3), schedule=lambda step: 0.01)
    config = TrainerConfig(evaluation=EvaluationConfig(every=3), log=LogConfig(every=1))
    state = Trainer([stage], make_mesh(*sizes), 0, RunOutputs(checkpoints, log), config).run()
    return np.array(lines["train"]), np.array(lines["validation"]), jax.device_get(state.carry.per_example)


@pytest.fixture(scope="module")
def expected():
    return train(WIDE)


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(("sizes", "microbatches"), [((8, 1, 1), 1), ((1, 8, 1), 2), ((2, 2, 2), 4)])
def test_every_mesh_and_number_of_microbatches_gives_the_losses_of_one_device(expected, capfd, sizes, microbatches):
    losses, validation, carry = train(WIDE, sizes, microbatches)
    assert losses[-1] < losses[0] - 0.05  # it learns, so that a wrong gradient would show
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    np.testing.assert_allclose(validation, expected[1], rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), carry, expected[2])
    assert not re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.parametrize("name", ["permutation", "masked"])
def test_a_resumed_run_ends_as_an_uninterrupted_one_with_its_memory(tmp_path, name):
    """Bit for bit, from a checkpoint in the middle of the text, with dropout."""
    objective = {"permutation": permutation, "masked": masked}[name]
    objective = objective.build(objective.Config(), transformer_xl.build(replace(WIDE, dropout=0.1)), VOCABULARY)
    stage = Stage("main", STEPS, objective, optax.adam(0.01), host_batches, BATCH_SIZE, 2,
                  schedule=lambda step: 0.01)
    log = SimpleNamespace(write=lambda *_: None, timing=lambda *_: None, flush=lambda: None,
                          keep_faults=lambda number: None)

    def run(newest=None):
        with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
            config = TrainerConfig(checkpoint=CheckpointConfig(every=4, keep=9))
            return Trainer([stage], make_mesh(1, 1, 1), 0, RunOutputs(checkpoints, log), config).run(newest)

    expected = jax.device_get(run())
    shutil.rmtree(tmp_path / str(STEPS))
    resumed = jax.device_get(run(4))
    assert resumed.step == STEPS and int(resumed.carry.per_example["filled"].sum()) == BATCH_SIZE * M
    jax.tree.map(np.testing.assert_array_equal, resumed, expected)
