"""Runs of two processes, of which one is stopped, suspended or killed, and runs that resume with one more or less."""

import json
import os
import re
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lmrep import api
from lmrep.core.errors import RunFault
from lmrep.distributed import process_group
from lmrep.distributed.watchdog import Watch
from lmrep.storage.checkpoints import Checkpoints
from tests import forked, small

pytestmark = pytest.mark.slow
STEPS = 100
# A low learning rate: the test compares which examples are seen, not how rounding errors grow over the steps.
FIELDS = {"steps": STEPS, "checkpoint.every": 20, "evaluation.every": 50, "model.layers": 1, "model.dropout": 0.1,
          "optimizer.learning_rate": 1e-5, "checkpoint.keep": 99}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts` and a config file."""
    home = tmp_path_factory.mktemp("faults")
    small.experiment_file(home, small.corpus(home / "texts"))
    return home


def train(home, workdir):
    config = small.config(home / "texts")
    config.update_from_flattened_dict(FIELDS)
    api.train(config, workdir, data_dir=home / "data")


def start_pair(home, workdir, **more):
    """Starts the run as two processes of one device each."""
    fields = [f"--config.{name}={value}" for name, value in (FIELDS | {"mesh.data": 2} | more).items()]
    words = ["train", f"--config={home}/small.py", f"--workdir={workdir}", f"--data_dir={home}/data", *fields]
    return [forked.Child(forked.lmrep, *words, environment=environment) for environment in forked.addresses(2)]


def test_a_run_stops_and_resumes_with_one_and_with_two_processes(home, tmp_path):
    """Started by one process, resumed by two of which one gets SIGTERM, resumed by two of which the first is killed,
    and finished by one: examples and losses are those of an uninterrupted run."""
    uninterrupted, run = tmp_path / "uninterrupted", tmp_path / "run"
    train(home, uninterrupted)
    shutil.copytree(uninterrupted, run)
    for step in (40, 60, 80, 100):
        shutil.rmtree(run / f"checkpoints/{step}")
    lines = [line for line in small.lines(run) if line["step"] <= 20]  # as a kill would have left them
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    pair = start_pair(home, run)
    small.until(lambda: forked.reached(run, 22), pair[0])
    pair[1].terminate()
    results = [small.finish(process) for process in pair]
    assert [result.code for result in results] == [143, 143], results
    last = Checkpoints(run / "checkpoints").newest()
    assert all(f"stopped at step {last} of {STEPS}, which is saved" in result.err for result in results)
    assert 20 < last < STEPS and not any("Traceback" in result.err for result in results)

    pair = start_pair(home, run, **{"faults.patience": 8, "steps": STEPS})
    small.until(lambda: forked.reached(run, last + 2), pair[0])
    assert_named(result_of_the_other(pair, 0, signal.SIGKILL), 0, r"is gone: \[Errno 111\] Connection refused")

    train(home, run)
    for split in ("train", "validation"):
        np.testing.assert_allclose(small.losses(run, split), small.losses(uninterrupted, split), rtol=1e-5)
    steps, tokens = ([[line[name] for line in small.lines(workdir, "train")] for workdir in (run, uninterrupted)]
                     for name in ("step", "tokens"))
    assert steps[0] == steps[1] == list(range(1, STEPS + 1)) and tokens[0] == tokens[1]


def result_of_the_other(pair, index, number):
    """Sends a signal to one of two processes, and returns the result of the other, which ends within 30 s."""
    began = time.monotonic()
    if number:
        os.kill(pair[index].pid, number)
    try:
        result = small.finish(pair[1 - index])
        assert time.monotonic() - began < 30
        return result
    finally:
        pair[index].kill()
        small.finish(pair[index])


def assert_named(result, index, reason):
    """Checks that the other process ended with one error message that names this one."""
    assert result.code == 3, result
    message = [line for line in result.err.splitlines() if "lmrep: error: " in line]
    assert len(message) == 1 and f"process {index} (" in message[0], result.err
    assert re.search(reason, message[0]), result.err
    assert f"({socket.gethostname()}) stops. Its last checkpoint is complete" in message[0]


def watched(directory, ending):
    """Steps of two processes under a watchdog; from step 100 on, process 1 hangs or fails if `ending` says so."""
    process_group.start()
    index = jax.process_index()
    with Watch(4) as watch:
        for step in range(1, 100_000):
            if step == 100:  # both have heard of each other
                Path(directory, str(index)).touch()
                if index == 1 and ending == "hangs":
                    time.sleep(1000)
                if index == 1 and ending == "fails":
                    raise RunFault("record 7 is damaged")
            watch.mark(f"step {step}")
            multihost_utils.process_allgather(np.ones(2))
            time.sleep(0.02)


def test_a_process_that_stops_hangs_or_fails_alone_is_named(tmp_path):
    cases = [  # the process, the signal that it gets, or how it ends, and the reason that the other gives
        (0, signal.SIGSTOP, "", "has not answered for|has been silent for"),  # whichever is late first
        (1, signal.SIGSTOP, "", "has been silent for"), (1, signal.SIGKILL, "", "silent for"),
        (1, 0, "hangs", "has stood still for"), (1, 0, "fails", "ended: record 7 is damaged")]
    started = []
    for number, (_, _, ending, _) in enumerate(cases):  # all at the same time: they wait
        (folder := tmp_path / str(number)).mkdir()
        started.append((folder, [forked.Child(watched, folder, ending, environment=environment)
                                 for environment in forked.addresses(2)]))

    def check(case, folder, pair):
        index, number, _, reason = case
        small.until(lambda: (folder / str(index)).exists(), pair[1 - index])
        assert_named(result_of_the_other(pair, index, number), index, reason)

    with ThreadPoolExecutor(len(cases)) as pool:
        for checked in [pool.submit(check, case, *pair) for case, pair in zip(cases, started, strict=True)]:
            checked.result()
