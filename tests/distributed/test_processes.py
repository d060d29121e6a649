"""Runs as processes: killed or stopped at any moment and started again, two on one workdir, two as one run."""

import os
import shutil
import signal
import socket

import numpy as np
import pytest

from lmrep import api
from lmrep.core.params import flatten
from lmrep.storage.checkpoints import Checkpoints
from tests import small


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts` and an experiment file."""
    home = tmp_path_factory.mktemp("processes")
    small.experiment_file(home, small.corpus(home / "texts"))
    return home


# Killed, stopped, resumed

STEPS = 400
LONG = {"steps": STEPS, "checkpoint.every": 40, "evaluation.every": 60, "log.every": 7, "model.dropout": 0.1,
        "optimizer.learning_rate": 3e-3}


def train(home, workdir):
    """The command line of a run of many steps, that saves and validates often."""
    fields = [f"--config.{name}={value}" for name, value in LONG.items()]
    return ["train", f"--config={home}/small.py", f"--workdir={workdir}", f"--data_dir={home}/data", *fields]


def reached(workdir, step):
    """Whether the run has written down that it is beyond this step."""
    path = workdir / "metrics.jsonl"
    written = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return bool(written) and int(written[-1].split(b",")[0].split(b":")[1]) >= step


def saving(workdir):
    """Whether a checkpoint is being written, and is not the first."""
    folder = workdir / "checkpoints"
    return len(Checkpoints(folder).steps()) > 1 and any(folder.glob(".unfinished-*"))


def kill(home, workdir, moment):
    """Starts the run, and kills it at a moment in a way that it cannot handle. Nothing that it started lives on."""
    process = small.start(*train(home, workdir))
    small.until(moment, process)
    os.kill(process.pid, signal.SIGKILL)
    assert small.finish(process).code == -signal.SIGKILL
    assert small.session(process.pid) == []


def stop(home, workdir, moment):
    """Starts the run, tries to start another beside it, and asks it to stop."""
    process = small.start(*train(home, workdir))
    small.until(moment, process)
    second = small.command(*train(home, workdir))
    assert second.code == 2 and f"in use by process {process.pid} on {socket.gethostname()}" in second.err
    process.terminate()
    answer = small.finish(process)
    assert answer.code == 143 and "Traceback" not in answer.err, answer
    last = Checkpoints(workdir / "checkpoints").newest()
    assert f"stopped at step {last} of {STEPS}, which is saved" in answer.err and last < STEPS
    assert small.session(process.pid) == []


def test_a_run_stopped_at_any_moment_ends_as_one_never_stopped(home, tmp_path):
    config = small.config(home / "texts")
    config.update_from_flattened_dict(LONG)
    api.train(config, home / "whole", data_dir=home / "data")
    whole, run = home / "whole", tmp_path / "run"

    kill(home, run, lambda: reached(run, 7))  # before the first checkpoint
    kill(home, run, lambda: saving(run))
    stop(home, run, lambda: reached(run, 190))  # between two checkpoints
    kill(home, run, lambda: (run / f"checkpoints/{STEPS}").is_dir())  # all is done, but the process is there
    answer = small.finish(small.start(*train(home, run)))
    assert answer.code == 0 and "Traceback" not in answer.err, answer

    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    state, expected = (flatten(Checkpoints(workdir / "checkpoints").read(STEPS)[0]) for workdir in (run, whole))
    assert state.keys() == expected.keys()
    for path in state:
        np.testing.assert_array_equal(state[path], expected[path], err_msg=path)


# One run of two processes

ONE_OF_TWO = """
import sys, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
index, port, home = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
assert jax.device_count() == 8 and jax.local_device_count() == 4
import contextlib
from pathlib import Path
import pytest
from lmrep import api
from lmrep.core.errors import UserError
from lmrep.storage import workdir
from tests.distributed.test_processes import LAYOUTS, brief
for name in LAYOUTS:
    api.train(brief(Path(home), name), f"{home}/two/{name}", data_dir=f"{home}/data")
# What stops one of them stops both, and neither waits for the other.
held = Path(home) / "two/held"
with workdir.lock(held) if index == "0" else contextlib.nullcontext(), pytest.raises(UserError, match="in use"):
    api.train(brief(Path(home), "data"), held, data_dir=f"{home}/data")
with pytest.raises(UserError, match="the mesh has 1 devices, and this run's 2 processes have 8; use all of them"):
    api.train(brief(Path(home)), Path(home) / "two/small", data_dir=f"{home}/data")
"""
LAYOUTS = {
    "data": {"mesh.data": 8, "microbatches": 2},  # spans the processes, each of which reads half of the rows
    "tensor": {"mesh.tensor": 8},  # spans the processes, and both read every row
}


def brief(home, name=""):
    """Ten steps of the small experiment on eight devices, or on one without a name out of LAYOUTS."""
    config = small.config(home / "texts", format="segment_pair")
    config.steps, config.checkpoint.every, config.evaluation.every = 10, 5, 10
    config.model.heads, config.objective.sentence_pair = 8, True
    config.update_from_flattened_dict(LAYOUTS.get(name, {}))
    return config


def test_two_processes_train_as_one_does_and_one_goes_on_with_their_run(home):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=4"
    processes = [small.start(index, port, home, code=ONE_OF_TWO, flags=flags) for index in range(2)]
    api.train(brief(home), home / "one", data_dir=home / "data")
    for answer in map(small.finish, processes):
        assert answer.code == 0, answer

    def agrees(workdir):
        for kind in ("train", "validation"):
            found, expected = small.losses(workdir, kind), small.losses(home / "one", kind)
            np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{workdir} {kind}")
        tokens = [[line["tokens"] for line in small.lines(run, "train")] for run in (workdir, home / "one")]
        assert tokens[0] == tokens[1]

    for name in LAYOUTS:
        agrees(home / "two" / name)
    shutil.rmtree(home / "two/tensor/checkpoints/10")
    api.train(brief(home), home / "two/tensor", data_dir=home / "data")
    agrees(home / "two/tensor")
