"""Training by permutation language modelling with a memory: a resumed run."""

import contextlib
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from lmrep.core.sharding import make_mesh
from lmrep.models import transformer_xl
from lmrep.objectives import permutation
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, TrainerConfig
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


@pytest.mark.slow
def test_a_resumed_run_ends_as_an_uninterrupted_one_with_its_memory(tmp_path):
    """Bit for bit, from a checkpoint in the middle of the text, with dropout."""
    objective = permutation.build(permutation.Config(), transformer_xl.build(replace(WIDE, dropout=0.1)), VOCABULARY)
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
