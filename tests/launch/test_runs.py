"""Real runs by the launch scripts: on one machine, and as two tasks of Slurm with one device each."""

import json
import os
import signal
import socket

import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import checks
from lmrep.storage.checkpoints import Checkpoints
from tests import forked, small
from tests.launch.stubs import LMREP, SRUN, Stubs

ONE_DEVICE = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"}
STEPS = 30


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`, a config file, and programs in `bin`."""
    home = tmp_path_factory.mktemp("launch")
    small.experiment_file(home, small.corpus(home / "texts"))
    return home


@pytest.fixture(scope="module")
def stubs(home):
    stubs = Stubs(home / "stubs")
    stubs.add("lmrep", LMREP)
    stubs.add("srun", SRUN)
    stubs.add("scontrol")
    return stubs


def free_job():
    """The number of a Slurm job whose port is free on this host."""
    for job in range(os.getpid(), os.getpid() + 4096):
        with socket.socket() as attempt:
            if attempt.connect_ex(("localhost", 61440 + job % 4096)):
                return str(job)


@pytest.mark.slow
def test_one_machine_trains_and_writes_a_log_and_a_profile(home, stubs):
    workdir = home / "runs/one"
    answer = small.finish(stubs.start("one_machine.sh", workdir, f"{home}/small.py", f"--data_dir={home}/data",
                                      "--profile=2", "--config.model.layers=1"))
    assert answer.code == 0, answer
    log = workdir.with_name("one.log").read_text()
    assert answer.out == log and "Trained to step 12." in log
    (trace,) = (workdir / "profile").rglob("*.trace.json.gz")
    assert f"profile from step 6 on: {trace}\n" in log and "ui.perfetto.dev" in log


@pytest.mark.slow
def test_slurm_trains_with_two_tasks_and_resumes_in_the_next_job(home, stubs):
    workdir, job = home / "slurm", free_job()
    fields = {"steps": STEPS, "checkpoint.every": 100, "evaluation.every": 100, "model.layers": 1}
    arguments = (workdir, f"{home}/small.py:mesh=2x1x1", f"--data_dir={home}/data",
             *(f"--config.{name}={value}" for name, value in fields.items()))
    outputs = [stubs.calls.with_name(f"calls.task{i}") for i in range(2)]

    process = stubs.start("slurm.sh", *arguments, **ONE_DEVICE, SLURM_JOB_ID=job)
    small.until(lambda: forked.reached(workdir, 3), process)
    (srun,) = children(process.pid)
    os.kill(srun, signal.SIGTERM)  # as Slurm does, before the time ends
    answer = small.finish(process)
    assert answer.code == 143, (answer, [output.read_text() for output in outputs])
    step = Checkpoints(workdir / "checkpoints").newest()
    assert 3 <= step < STEPS
    for output in outputs:
        assert f"lmrep: stopped at step {step} of {STEPS}, which is saved" in output.read_text()
        output.unlink()
    assert [call["words"] for call in stubs.called()] == [["scontrol", "requeue", job]]

    answer = small.finish(stubs.start("slurm.sh", *arguments, **ONE_DEVICE, SLURM_JOB_ID=free_job()))
    assert answer.code == 0, (answer, [output.read_text() for output in outputs])
    first, second = (output.read_text() for output in outputs)
    assert f"resuming from step {step} of {STEPS}" in first and f"Trained to step {STEPS}." in first
    assert all(word not in second for word in ("resuming from", "validation", "Trained", "tokens/s", "Traceback"))
    assert [line["step"] for line in small.lines(workdir, "train")] == list(range(1, STEPS + 1))
    starts = [json.loads(line) for line in (workdir / "provenance.jsonl").read_text().splitlines()]
    assert len(starts) == 2


def children(parent):
    """The processes that a process has started."""
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.slow
def test_input_unreadable_on_one_process_stops_both(home, tmp_path):
    configs = home / "small.py", tmp_path / "small.py"
    zero, one = map(small.finish, [
        forked.Child(forked.lmrep, "train", f"--config={config}:mesh=2x1x1", f"--workdir={tmp_path}/run",
                     environment=environment)
        for config, environment in zip(configs, forked.addresses(2), strict=True)])
    message = f"there is no config file {tmp_path}/small.py; `lmrep pages` lists those of the package\n"
    assert (zero.code, one.code) == (2, 2), (zero, one)
    assert zero.err.endswith(f"lmrep: error: process 1 on {socket.gethostname()}: {message}")
    assert one.err.endswith(f"lmrep: error: {message}")
    assert not (tmp_path / "run").exists()


def test_workdir_not_shared_by_hosts_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not hold what process 0 has written to the workdir; give a --workdir on"):
        checks.check_shared(tmp_path, seconds=0)
    (tmp_path / "config.json").touch()
    checks.check_shared(tmp_path, seconds=0)
