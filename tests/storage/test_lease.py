"""The lease of a run in a remote store, which fsspec's store in memory stands for."""

import json
import os
import shutil
import threading
import time
from functools import partial

import fsspec
import numpy as np
import pytest

import lmrep
from lmrep import doctor
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.storage import lease, remote_workdir
from lmrep.storage.lease import Lease, LeaseLost
from lmrep.storage.remote_checkpoints import complete_steps
from tests import forked, small

URL = "memory://runs/small"
THEIRS = {"id": "theirs", "host": "other", "process": 1, "machine": ["other", "boot", 1], "started": "9", "time": 0.0}


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine whose local directories are in the test's own, and an empty store."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    for name, value in (("SETTLE", 0.0), ("POLL", 0.01), ("SILENT", 0.1)):
        monkeypatch.setattr(lease, name, value)
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    monkeypatch.setattr(remote, "PATIENCE", 0.05)
    monkeypatch.setattr(remote_workdir, "LAST_PATIENCE", 0.05)
    system = fsspec.filesystem("memory")
    for name in system.find("/"):
        system.rm_file(name)
    return tmp_path / "machine"


def store() -> remote.Store:
    return remote_workdir.open_store(URL)


def write_lease(**fields) -> None:
    store().write(lease.LEASE, json.dumps(THEIRS | fields).encode())


def here(process: int, **fields) -> dict:
    """The fields of a lease of a process of this machine."""
    return {"machine": lease._machine(), "process": process, "started": lease._started(process), **fields}


def taken(own: Lease) -> str:
    while (identity := own.take()) is None:
        pass
    return identity


def train() -> None:
    with remote_workdir.training(URL):
        pass


# Taking it


def test_holder_on_another_machine_is_gone_once_it_has_been_silent_for_long(monkeypatch, caplog):
    """However its clock differs from that of this machine."""
    for skew in (-3600.0, 0.0, 3600.0):
        write_lease(time=time.time() + skew)
        own, begin = Lease(store()), time.monotonic()
        assert taken(own) == lease.read(store())["id"]
        assert time.monotonic() - begin >= lease.SILENT
        own.release()
    assert "process 1 on other has a lease on the workdir memory://runs/small; waiting for up to 0.1 s" in caplog.text
    assert store().names() == []


def test_holder_that_gives_signs_of_life_is_left_alone(monkeypatch):
    monkeypatch.setattr(lease, "SILENT", 60.0)
    write_lease(time=time.time() - 3600)
    own = Lease(store())
    assert own.take() is own.take() is None
    write_lease(time=time.time() - 3570)  # its clock is an hour behind
    with pytest.raises(UserError, match=f"the workdir {URL} is in use by process 1 on other; wait for that run, stop"):
        own.take()
    assert lease.read(store())["id"] == "theirs"
    write_lease()
    threading.Timer(0.1, lambda: store().remove(lease.LEASE)).start()  # it ends
    train()
    assert store().names() == []


@pytest.mark.parametrize("fields", [
    {"machine": ["host", "the boot of another machine", 4026531836]},
    {"machine": None},  # of a system that does not tell
    {"process": None}, {"machine": 3, "process": "../self"},
], ids=["another boot", "unknown machine", "no process", "nonsense"])
def test_equal_process_numbers_mean_nothing_on_other_machines(fields):
    """Pods have equal host names in two namespaces, and each runs as process 1."""
    write_lease(**here(os.getpid()) | {"started": "another"} | fields)
    assert lease.alive(lease.read(store())) is None
    assert Lease(store()).take() is None  # it may be alive


def test_another_container_of_this_machine_is_another_machine():
    host, boot, namespace = lease._machine()
    for machine in ([host, boot, namespace + 1], [host, "", namespace], ["other", boot, namespace]):
        write_lease(**here(1) | {"machine": machine, "started": "another"})
        assert lease.alive(lease.read(store())) is None


def test_processes_of_this_machine_are_looked_up(monkeypatch, machine):
    monkeypatch.setattr(lease, "SILENT", 60.0)
    for gone in (here(2**22 + 1), here(os.getppid(), started="1"), here(os.getpid(), started="1"), here(os.getpid())):
        write_lease(**gone)
        train()
    write_lease(**here(os.getppid()))
    with pytest.raises(UserError, match=f"in use by process {os.getppid()} on"):
        train()
    store().remove(lease.LEASE)
    with remote_workdir.training(URL):
        with pytest.raises(UserError, match=f"the workdir {URL} is in use by process"):
            train()  # refused by the lock on the local directory
        monkeypatch.setenv("LMREP_DATA_DIR", str(machine / "other"))
        with pytest.raises(UserError, match=f"the workdir {URL} is in use by process {os.getpid()} on"):
            train()
        write = {finding.check: finding for finding in doctor.examine(small.config(machine), URL)}["remote"]
        assert write.mark == doctor.FAILED and "in use by process" in write.text


def test_doctor_does_not_wait_for_a_sign_of_life(machine):
    write_lease()
    finding = {finding.check: finding for finding in doctor.examine(small.config(machine), URL)}["remote"]
    assert finding.mark == "warning" and "lease.json of process 1 on other; a run will wait for up to" in finding.text


@pytest.mark.parametrize("content", [b"", b"[]", b'{"time": 1}', b'{"id": 3}', b"\xff", b"[" * 100_000])
def test_file_that_is_no_lease_is_refused(content):
    store().write(lease.LEASE, content)
    with pytest.raises(UserError, match=rf"{URL}/lease\.json is not a lease of lmrep; if no run uses .* delete"):
        train()
    assert store().read(lease.LEASE) == content


def test_lease_that_is_being_written_is_read_again(monkeypatch):
    write_lease()
    contents = iter([b"", store().read(lease.LEASE)])
    monkeypatch.setattr(remote.Store, "read", lambda self, name: next(contents))
    assert lease.read(store())["id"] == "theirs"


def test_one_of_two_runs_that_start_together_is_refused(monkeypatch):
    """The other one takes the lease after this one has found none."""
    create = remote.Store.create

    def create_later(self, name, content):
        write_lease()
        create(self, name, content)

    monkeypatch.setattr(remote.Store, "create", create_later)
    with pytest.raises(UserError, match=f"{URL} was taken by process 1 on other at the same time; give another"):
        train()
    assert lease.read(store()) == THEIRS and not lease._held


def test_one_of_two_runs_is_refused_where_the_store_cannot_create_exclusively(monkeypatch):
    """The other one replaces its lease."""
    def create(self, name, content):
        self.write(name, content)
        write_lease()

    monkeypatch.setattr(remote.Store, "create", create)
    with pytest.raises(UserError, match=f"{URL} was taken by process 1 on other at the same time"):
        train()
    assert lease.read(store()) == THEIRS


@pytest.mark.parametrize("failure", [OSError(5, "no route"), KeyboardInterrupt()], ids=["store", "Ctrl-C"])
def test_lease_is_given_back_if_the_start_fails(monkeypatch, failure):
    read, failures = remote.Store.read, [None, failure, None]  # of the read after the lease was written

    def read_or_fail(self, name):
        if failures and (error := failures.pop(0)):
            raise error
        return read(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(remote.Store, "read", read_or_fail)
        with pytest.raises((UserError, KeyboardInterrupt)):
            train()
    assert store().names() == [] and not lease._held
    train()


# Holding it


def test_check_does_not_write_the_lease_back_after_its_release(monkeypatch):
    own = Lease(store())
    taken(own)
    checking, released, write = threading.Event(), threading.Event(), remote.Store.write

    def write_late(self, name, content):
        checking.set()
        released.wait(0.2)  # the release begins while the check is about to write
        write(self, name, content)

    monkeypatch.setattr(remote.Store, "write", write_late)
    thread = threading.Thread(target=own.check, args=(0,))
    thread.start()
    assert checking.wait(small.SECONDS)
    own.release()
    released.set()
    thread.join(small.SECONDS)
    assert not thread.is_alive()
    assert store().names() == []
    with pytest.raises(LeaseLost, match=f"this run has given {URL} back"):
        own.check(0)
    assert store().names() == []


def test_lease_that_was_taken_stays_lost():
    own = Lease(store())
    taken(own)
    other = Lease(store(), own.identity)  # of another process of the same run
    for each in (own, other):
        each.check(0)
    content = store().read(lease.LEASE)
    for damage, message in ((lambda: write_lease(), f"process 1 on other has taken {URL}"),
                            (lambda: store().remove(lease.LEASE), f"lease.json was removed from {URL}"),
                            (lambda: store().write(lease.LEASE, b"{"), "lease.json is not a lease")):
        each = Lease(store(), own.identity)
        damage()
        with pytest.raises(LeaseLost, match=message):
            each.check(0)
        store().write(lease.LEASE, content)
        with pytest.raises(LeaseLost, match=message):
            each.check(lease.EVERY)
    own.release()


def test_a_run_whose_lease_was_taken_changes_no_checkpoint():
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        write_lease()
        checkpoints.save(1, {"x": np.zeros(3)}, {})
        with pytest.raises(RunFault, match=r"checkpoint 1 could not .*process 1 on other has taken"):
            checkpoints.wait()
        store().write("checkpoints/2/manifest.json", b"theirs")
        with pytest.raises(LeaseLost, match="process 1 on other has taken"):
            checkpoints.save(2, {"x": np.zeros(3)}, {})  # replaces a checkpoint
        with pytest.raises(LeaseLost, match="process 1 on other has taken"):
            checkpoints.drop_after(None)
        checkpoints.close()
    assert store().names() == ["checkpoints/2/manifest.json", lease.LEASE]


@pytest.mark.slow
def test_a_run_whose_lease_was_taken_stops_at_the_next_step(small_home, monkeypatch, caplog):
    """And not at the next checkpoint, thousands of steps later."""
    config = small.config(small_home / "texts")
    config.steps = config.checkpoint.every = config.evaluation.every = 5_000  # an end, should it not stop
    monkeypatch.setattr(lease, "EVERY", 0.01)
    monkeypatch.setattr(remote_workdir, "training", partial(remote_workdir.training, every=0.01))
    metrics, ended = remote_workdir.copy_dir(URL) / "metrics.jsonl", threading.Event()

    def take_from_the_run():
        while not ended.wait(0.01):
            if metrics.exists() and metrics.read_text().count("\n") > 2:
                write_lease()  # again, as a renewal may overwrite it

    thread = threading.Thread(target=take_from_the_run)
    thread.start()
    try:
        with pytest.raises(LeaseLost) as raised:
            lmrep.train(config, URL, data_dir=small_home / "data")
    finally:
        ended.set()
        thread.join()
    assert str(raised.value) == f"process 1 on other has taken {URL}; this run stops, since only one may write there"
    assert raised.value.exit_code == 3 and "trying again" not in caplog.text
    assert complete_steps(store().names()) == [] and lease.read(store())["id"] == "theirs"


def look_often(*words):
    """Runs `lmrep WORDS`, which looks at its lease all the time."""
    lease.EVERY = 0.05
    remote_workdir.training = partial(remote_workdir.training, every=0.05)
    forked.lmrep(*words)


@pytest.mark.slow
def test_both_processes_of_a_run_whose_lease_was_taken_stop_together(small_home, tmp_path):
    """Long before their next checkpoint, with one message each."""
    small.experiment_file(tmp_path, small_home / "texts")
    url, many = f"local://{tmp_path}/store/run", 1_000_000  # as fsspec names a store on a disk
    words = ["train", f"--config={tmp_path}/small.py", f"--workdir={url}", f"--data_dir={small_home}/data",
             f"--config.steps={many}", f"--config.checkpoint.every={many}", f"--config.evaluation.every={many}",
             "--config.mesh.data=2", "--config.model.layers=1"]
    processes = [forked.Child(look_often, *words, environment=own) for own in forked.addresses(2)]
    small.until(lambda: forked.reached(tmp_path / "store/run", 2), processes[0])
    deadline = time.monotonic() + small.SECONDS
    while any(process.poll() is None for process in processes):  # a renewal may overwrite it once
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
            raise AssertionError("it took too long")
        remote_workdir.open_store(url).write(lease.LEASE, json.dumps(THEIRS).encode())
        time.sleep(0.1)
    for answer in map(small.finish, processes):
        assert answer.code == 3 and "Traceback" not in answer.err, answer
        assert answer.err.count(f"process 1 on other has taken {url}") == 1, answer
    assert not [path for path in (tmp_path / "store/run/checkpoints").rglob("*") if path.is_file()]


def test_lost_lease_is_reported_with_what_the_store_lacks(small_home):
    with pytest.raises(RunFault, match=r"lacks the last changes of .*process 1 on other has taken"), \
            remote_workdir.training(URL) as run:
        shutil.copytree(small_home / "run", run.directory, dirs_exist_ok=True)
        write_lease()
        run.checkpoints.keywords["lease"]._checked = 0.0  # later
    assert store().names() == [lease.LEASE]
