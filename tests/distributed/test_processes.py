"""Runs as processes: killed or stopped at any moment and started again, two on one workdir, two as one run."""

import contextlib
import os
import shutil
import signal
import socket

import jax
import numpy as np
import pytest

from lmrep import api
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.distributed import process_group
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from tests import forked, small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts` and a config file."""
    home = tmp_path_factory.mktemp("processes")
    small.experiment_file(home, small.corpus(home / "texts"))
    return home


# Killed, stopped, resumed

STEPS = 120
LONG = {"steps": STEPS, "checkpoint.every": 15, "evaluation.every": 40, "log.every": 7, "model.layers": 1,
        "model.dropout": 0.1, "optimizer.learning_rate": 3e-3, "batch_size": 8}


def command_line(home, workdir):
    """A run of many steps, that saves and validates often."""
    fields = [f"--config.{name}={value}" for name, value in LONG.items()]
    return ["train", f"--config={home}/small.py", f"--workdir={workdir}", f"--data_dir={home}/data", *fields]


def saving(workdir):
    """Whether a checkpoint is being written, and is not the first."""
    folder = workdir / "checkpoints"
    return len(Checkpoints(folder).steps()) > 1 and any(folder.glob(".unfinished-*"))


def kill(home, workdir, condition):
    """Starts the run, and kills it once `condition()` holds. None of its own children is left."""
    process = forked.Child(forked.lmrep, *command_line(home, workdir))
    small.until(condition, process)
    process.kill()
    assert small.finish(process).code == -signal.SIGKILL
    assert small.session(process.pid) == []


def stop(home, workdir, condition):
    """Starts the run, tries to start another in its workdir, and sends it SIGTERM."""
    process = forked.Child(forked.lmrep, *command_line(home, workdir))
    small.until(condition, process)
    os.kill(process.pid, signal.SIGSTOP)  # it must not end before the other one is refused
    second = small.command(*command_line(home, workdir))
    assert second.code == 2 and f"in use by process {process.pid} on {socket.gethostname()}" in second.err
    os.kill(process.pid, signal.SIGCONT)
    process.terminate()
    answer = small.finish(process)
    assert answer.code == 143 and "Traceback" not in answer.err, answer
    last = Checkpoints(workdir / "checkpoints").newest()
    assert f"stopped at step {last} of {STEPS}, which is saved" in answer.err and last < STEPS
    assert small.session(process.pid) == []


def test_a_run_stopped_at_any_moment_ends_as_one_never_stopped(home, tmp_path):
    config = small.config(home / "texts")
    config.update_from_flattened_dict(LONG)
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "run"
    api.train(config, uninterrupted, data_dir=home / "data")

    kill(home, run, lambda: forked.reached(run, 7))  # before the first checkpoint
    kill(home, run, lambda: saving(run))
    stop(home, run, lambda: forked.reached(run, 50))  # between two checkpoints
    kill(home, run, lambda: (run / f"checkpoints/{STEPS}").is_dir())  # complete, but the process has not ended
    answer = small.command(*command_line(home, run))
    assert answer.code == 0 and "Traceback" not in answer.err, answer

    assert (run / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    state, expected = (flatten(Checkpoints(path / "checkpoints").read(STEPS)[0]) for path in (run, uninterrupted))
    assert state.keys() == expected.keys()
    for path in state:
        np.testing.assert_array_equal(state[path], expected[path], err_msg=path)


# One run of two processes


def brief(home, tensor=1):
    """Six steps of the small experiment, with the network sharded over `tensor` devices."""
    config = small.config(home / "texts", format="segment_pair")
    config.steps, config.checkpoint.every, config.evaluation.every = 6, 3, 6
    config.model.layers, config.model.heads, config.objective.sentence_pair = 1, 8, True
    config.mesh.tensor = tensor
    return config


def one_of_two(home):
    """Trains on eight devices of two processes, both of which read every example; then two runs that are refused."""
    process_group.start()
    assert jax.device_count() == 8 and jax.local_device_count() == 4
    api.train(brief(home, tensor=8), home / "two", data_dir=home / "data")
    # An error of one process stops both, and neither waits for the other.
    held = home / "held"
    with workdir.lock(held) if jax.process_index() == 0 else contextlib.nullcontext(), \
            pytest.raises(UserError, match="in use"):
        api.train(brief(home, tensor=8), held, data_dir=home / "data")
    with pytest.raises(UserError, match="the mesh has 1 devices, and this run's 2 processes have 8; use all of them"):
        api.train(brief(home), home / "one_device", data_dir=home / "data")


def test_two_processes_train_as_one_does_and_one_continues_their_run(home):
    processes = [forked.Child(one_of_two, home, devices=4, environment=environment)
                 for environment in forked.addresses(2)]
    api.train(brief(home), home / "one", data_dir=home / "data")
    for answer in map(small.finish, processes):
        assert answer.code == 0, answer

    def assert_equal_losses():
        for split in ("train", "validation"):
            losses, expected = small.losses(home / "two", split), small.losses(home / "one", split)
            np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=split)
        tokens = [[line["tokens"] for line in small.lines(home / run, "train")] for run in ("two", "one")]
        assert tokens[0] == tokens[1]

    assert_equal_losses()
    shutil.rmtree(home / "two/checkpoints/6")
    api.train(brief(home), home / "two", data_dir=home / "data")
    assert_equal_losses()
