"""A recurrent language model with a carried state trains alike on every mesh and in any number of microbatches."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from lmrep.core.sharding import make_mesh
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import lstm
from lmrep.objectives import causal
from lmrep.training.config import EvaluationConfig, LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage

V, BATCH_SIZE, LENGTH, STEPS = 24, 16, 8, 6
TEXTS = np.random.default_rng(0).integers(2, V // 2, (BATCH_SIZE, STEPS * LENGTH + 1)).astype(np.int32)
NETWORKS = {"lstm": lstm.Config(vocab=V, width=16, layers=2, embedding=8, dropout=0.0),
            "rnn": lstm.Config(vocab=V, width=16, layers=1, cell="rnn", tied=False, dropout=0.2)}


def host_batches(indices, first, last):
    for step in range(first, last):
        start, end = step % STEPS * LENGTH, (step % STEPS + 1) * LENGTH
        yield {"tokens": TEXTS[indices, start:end], "segment_ids": np.ones((len(indices), LENGTH), np.int32),
               "example": indices.astype(np.int32) + BATCH_SIZE * step, "following": TEXTS[indices, end],
               "reset": np.full(len(indices), step == 0, np.int32)}


def train(network, sizes=(1, 1, 1), microbatches=1):
    """(the loss of each step, that of each evaluation, the state after the last step)."""
    model = lstm.build(NETWORKS[network])
    objective = causal.build(causal.Config(), model, Vocabulary(V, {"pad": 1}, np.ones(V, bool), np.arange(V)))
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
    return {network: train(network) for network in NETWORKS}


# Dropout draws from a key for each microbatch, and so depends on their number, but not on the mesh.
CASES = [("lstm", (8, 1, 1), 1), ("lstm", (1, 8, 1), 2), ("lstm", (2, 2, 2), 4), ("rnn", (8, 1, 1), 1),
         ("rnn", (2, 2, 2), 1)]


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(("network", "sizes", "microbatches"), CASES)
def test_every_mesh_and_number_of_microbatches_gives_the_losses_of_one_device(
        expected, capfd, network, sizes, microbatches):
    losses, validation, carry = train(network, sizes, microbatches)
    assert losses[-1] < losses[0] - 0.05  # it learns, so that a wrong gradient would show
    np.testing.assert_allclose(losses, expected[network][0], rtol=1e-5)
    np.testing.assert_allclose(validation, expected[network][1], rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), carry, expected[network][2])
    assert not re.findall(r".*rematerial.*", capfd.readouterr().err, re.IGNORECASE)
