"""Runs of two processes, of which one is stopped, suspended or killed, and runs that resume with one more or less."""

import json
import os
import shutil
import signal
import socket
import time

import numpy as np
import pytest

from lmrep import api
from lmrep.storage.checkpoints import Checkpoints
from tests import small

ONE_OF_TWO = """
import os, sys
index, port, *words = sys.argv[1:]
os.environ.update(JAX_COORDINATOR_ADDRESS=f"localhost:{port}", JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=index)
sys.argv[1:] = words
from lmrep.cli.main import main
sys.exit(main())
"""
STEPS = 100
# A low rate: what is compared is which examples are seen, not how rounding grows over hundreds of steps.
FIELDS = {"steps": STEPS, "checkpoint.every": 20, "evaluation.every": 50, "model.dropout": 0.1,
          "optimizer.learning_rate": 1e-5, "checkpoint.keep": 99}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`, an experiment file, and in `one` a run of one process."""
    home = tmp_path_factory.mktemp("faults")
    small.experiment_file(home, small.corpus(home / "texts"))
    config = small.config(home / "texts")
    config.update_from_flattened_dict(FIELDS)
    api.train(config, home / "one", data_dir=home / "data")
    return home


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def pair(home, workdir, **more):
    """Starts the run as two processes of one device each."""
    port = free_port()
    fields = [f"--config.{name}={value}" for name, value in (FIELDS | {"mesh.data": 2} | more).items()]
    words = ["train", f"--config={home}/small.py", f"--workdir={workdir}", f"--data_dir={home}/data", *fields]
    return [small.start(index, port, *words, code=ONE_OF_TWO, flags="--xla_force_host_platform_device_count=1")
            for index in range(2)]


def reached(workdir, step):
    path = workdir / "metrics.jsonl"
    written = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return bool(written) and int(written[-1].split(b",")[0].split(b":")[1]) >= step


def test_a_run_resumes_with_two_processes_and_then_with_one(home, tmp_path):
    """Both stop at the same step when one gets SIGTERM; examples and losses are those of an uninterrupted run."""
    run = shutil.copytree(home / "one", tmp_path / "run")
    for step in Checkpoints(run / "checkpoints").steps():
        if step > 20:
            shutil.rmtree(run / f"checkpoints/{step}")
    lines = [line for line in small.lines(run) if line["step"] <= 20]  # as a kill would have left them
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    both = pair(home, run)
    small.until(lambda: reached(run, 22), both[0])
    both[1].terminate()
    results = [small.finish(process) for process in both]
    assert [result.code for result in results] == [143, 143], results
    last = Checkpoints(run / "checkpoints").newest()
    assert all(f"stopped at step {last} of {STEPS}, which is saved" in result.err for result in results)
    assert 20 < last < STEPS and not any("Traceback" in result.err for result in results)

    config = small.config(home / "texts")
    config.update_from_flattened_dict(FIELDS)
    api.train(config, run, data_dir=home / "data")
    for kind in ("train", "validation"):
        np.testing.assert_allclose(small.losses(run, kind), small.losses(home / "one", kind), rtol=1e-5)
    steps, tokens = ([[line[name] for line in small.lines(workdir, "train")] for workdir in (run, home / "one")]
                     for name in ("step", "tokens"))
    assert steps[0] == steps[1] == list(range(1, STEPS + 1)) and tokens[0] == tokens[1]


def result_of_the_other(both, index, number):
    """Sends a signal to one of two processes, and returns (the result of the other, after how many seconds)."""
    began = time.monotonic()
    if number:
        os.kill(both[index].pid, number)
    try:
        return small.finish(both[1 - index]), time.monotonic() - began
    finally:
        both[index].kill()
        small.finish(both[index])


def assert_named(result, index, what):
    """Checks that the other process ended with one error message that names this one."""
    assert result.code == 3, result
    message = [line for line in result.err.splitlines() if "lmrep: error: " in line]
    assert len(message) == 1 and f"process {index} (" in message[0] and what in message[0], result.err
    assert f"({socket.gethostname()}) stops. Its last checkpoint is complete" in message[0]


@pytest.mark.parametrize(("index", "number", "what"), [
    (1, signal.SIGSTOP, "has been silent for"), (0, signal.SIGKILL, "is gone: [Errno 111] Connection refused")])
def test_when_a_process_of_a_run_stops_the_other_names_it_and_exits(home, tmp_path, index, number, what):
    both = pair(home, tmp_path / "run", **{"faults.patience": 8, "steps": 100_000})
    # Checkpoints are written behind the steps: that a step is logged does not say that the one before it is whole.
    small.until(lambda: (tmp_path / "run/checkpoints/20").is_dir(), both[0])
    result, seconds = result_of_the_other(both, index, number)
    assert_named(result, index, what)
    assert seconds < 30 and Checkpoints(tmp_path / "run/checkpoints").newest() >= 20


WATCHED = """
import os, sys, time, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
index, port, place, ends = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
import numpy as np
from jax.experimental import multihost_utils
from lmrep.core.errors import RunFault
from lmrep.distributed.watchdog import Watch
with Watch(4) as watch:
    for step in range(1, 100_000):
        if step == 40:
            open(f"{place}/{index}", "w").close()
        if step == 40 and index == "1" and ends == "hangs":
            time.sleep(1000)
        if step == 40 and index == "1" and ends == "fails":
            raise RunFault("record 7 is damaged")
        watch.mark(f"step {step}")
        multihost_utils.process_allgather(np.ones(2))
        time.sleep(0.02)
"""


@pytest.mark.parametrize(("index", "number", "ends", "what"), [
    (0, signal.SIGSTOP, "", "which leads the run, has not answered for"), (1, signal.SIGKILL, "", "silent for"),
    (1, 0, "hangs", "has stood still for"), (1, 0, "fails", "ended: record 7 is damaged")])
def test_a_process_that_stops_hangs_or_fails_alone_is_named(tmp_path, index, number, ends, what):
    port = free_port()
    both = [small.start(i, port, tmp_path, ends, code=WATCHED, flags="--xla_force_host_platform_device_count=1")
            for i in range(2)]
    small.until(lambda: (tmp_path / str(index)).exists(), both[1 - index])
    result, seconds = result_of_the_other(both, index, number)
    assert_named(result, index, what)
    assert seconds < 30
