"""Runs in a remote store, which fsspec's store in memory stands for."""

import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import fsspec
import jax
import numpy as np
import pytest

import lmrep
from lmrep import doctor
from lmrep.core import remote
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.inference import load
from lmrep.storage import claims, mirror, workdir
from lmrep.storage.checkpoints import Checkpoints
from tests import small

URL = "memory://runs/small"


@pytest.fixture(scope="module")
def home(small_home):
    return small_home


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine whose copies are in a folder of the test's own, and an empty store; gives that folder."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    monkeypatch.setattr(mirror, "PAUSES", (0, 0))
    system = fsspec.filesystem("memory")
    for name in system.find("/"):
        system.rm_file(name)
    return tmp_path / "machine"


def train(home, url=URL, **fields):
    config = small.config(home / "texts")
    config.update_from_flattened_dict(fields)
    return lmrep.train(config, url, data_dir=home / "data")


def contents(url=URL) -> dict[str, bytes]:
    store = mirror.open_store(url)
    return {name: store.read(name) for name in store.names() if name != claims.MARK}


def copied(directory: Path, url: str = URL) -> Path:
    """The run of a directory as this machine's copy, which is uploaded."""
    with mirror.mirrored(url) as local:
        shutil.copytree(directory, local, dirs_exist_ok=True)
    return local


def stopped_after(monkeypatch, count: int, failure: Exception) -> None:
    """Cuts the machine off from the store after this many uploaded checkpoint files."""
    uploads, upload = iter(range(count)), mirror.Store.upload

    def cut_off(self, *args):
        if next(uploads, None) is None:
            raise failure
        upload(self, *args)

    monkeypatch.setattr(mirror.Store, "upload", cut_off)


# Training


def test_run_is_complete_in_the_store_and_resumes_elsewhere(home, machine, monkeypatch):
    """Stopped after step 4, and taken up by a machine that has nothing of it, it ends as one that was never stopped."""
    save = Checkpoints.save

    def save_and_stop(self, *args, **kwargs):
        save(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match="stopped at step 5"):
        patch.setattr(Checkpoints, "save", save_and_stop)
        train(home)
    assert mirror.complete_steps(contents()) == [4, 5]
    shutil.rmtree(machine)
    outcome = train(home)

    assert outcome.steps == 12
    there, local = contents(), small.contents(home / "run")
    assert there["metrics.jsonl"] == (home / "run/metrics.jsonl").read_bytes()
    assert mirror.complete_steps(there) == [5, 8, 12]
    same = [name for name in local if name.startswith("tokenizer/")] + ["config.json", "timing.jsonl"]
    assert there.keys() >= {*same, "provenance.jsonl"} and not any("unfinished" in name for name in there)
    assert len(there["provenance.jsonl"].splitlines()) == 2
    assert not claims.mark(mirror.open_store(URL))["held"]

    shutil.rmtree(machine)
    mine, run = lmrep.load(home / "run"), lmrep.load(URL)
    jax.tree.map(np.testing.assert_array_equal, mine.params, run.params)
    assert {p.name for p in (run.directory / "checkpoints").iterdir()} == {"12"}  # no other was fetched
    assert lmrep.load(URL, 5).step == 5
    metrics = [lmrep.evaluate(URL, data_dir=home / "data", examples=number) for number in (4, 8)]
    assert json.loads(contents()["eval.json"])["metrics"] == metrics[1]
    assert [json.loads(line)["metrics"] for line in contents()["eval.jsonl"].splitlines()] == metrics

    other = b'{"metrics": {"loss": 1.0}}\n'  # of another machine, meanwhile
    mirror.open_store(URL).write("eval.jsonl", contents()["eval.jsonl"] + other)
    lmrep.evaluate(URL, data_dir=home / "data", examples=2)
    lines = contents()["eval.jsonl"].splitlines(keepends=True)
    assert len(lines) == 4 and lines[2] == other


def test_commands_accept_the_url_as_workdir(home, machine):
    copied(home / "run")
    shutil.rmtree(machine)
    flags = f"--workdir={URL}", f"--data_dir={home / 'data'}"
    answer = small.command("train", *flags, "--config.seed=1")
    assert answer.code == 2 and f"{URL} holds a run of another configuration" in answer.err
    answer = small.command("train", *flags)
    assert answer.code == 0 and "Trained to step 12" in answer.out, answer.err
    answer = small.command("predict", f"--workdir={URL}", "The [MASK] cat.")
    assert answer.code == 0 and "%" in answer.out
    assert small.command("inspect", *flags).code == 0
    assert "equal: all" in small.command("diff", URL, home / "run").out
    answer = small.command("average", URL, machine / "mean")
    assert answer.code == 2 and f"{URL} is in a remote store" in answer.err
    answer = small.command("convert", URL, "memory://runs/published", "--to=huggingface")
    assert answer.code == 2 and "memory://runs/published is in a remote store" in answer.err
    answer = small.command("train", "--workdir=memory://runs/none")
    assert answer.code == 2 and "there is no run in memory://runs/none" in answer.err


def test_refused_run_does_not_change_the_store(home):
    with pytest.raises(UserError, match="batch_size"):
        train(home, batch_size=7, **{"mesh.data": 2})
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        train(home, **{"tokenizer.vocab_file": "/nowhere/vocab.txt"})
    assert mirror.open_store(URL).names() == []


# Uploads


def test_interrupted_upload_leaves_the_previous_checkpoint(home, machine, monkeypatch):
    local = copied(home / "run")
    shutil.move(local / "checkpoints/12", machine / "12")
    with mirror.mirrored(URL):
        pass
    assert mirror.complete_steps(contents()) == [4, 8]
    shutil.move(machine / "12", local / "checkpoints/12")
    with monkeypatch.context() as patch:
        stopped_after(patch, 3, ConnectionError("the line is cut"))
        with pytest.raises(RunFault, match=rf"{URL} lacks checkpoint 12, .* the line is cut.* {local}; the same"), \
                mirror.mirrored(URL):
            pass
    names = mirror.open_store(URL).names()
    assert any(name.startswith("checkpoints/12/") for name in names) and mirror.complete_steps(names) == [4, 8]

    assert lmrep.load(URL).step == 12  # on this machine, whose copy is ahead
    elsewhere = shutil.move(machine, machine.with_name("elsewhere"))
    assert lmrep.load(URL).step == 8
    shutil.rmtree(machine)
    shutil.move(elsewhere, machine)
    with mirror.mirrored(URL):
        pass
    assert mirror.complete_steps(contents()) == [4, 8, 12]
    shutil.rmtree(machine)
    assert lmrep.load(URL).step == 12


def test_removed_and_replaced_checkpoints_are_mirrored(home):
    local = copied(home / "run")
    with mirror.mirrored(URL):
        shutil.rmtree(local / "checkpoints/4")
        shutil.rmtree(local / "checkpoints/12")
        (local / "checkpoints/12").mkdir()
        (local / "checkpoints/12/a").write_text("other arrays")
        workdir.seal(local / "checkpoints/12", {"step": 12})
        (local / "checkpoints/.unfinished-16").mkdir()
        (local / "checkpoints/.unfinished-16/a").write_text("half")
        (local / "metrics.jsonl").write_text("{}\n")
    there = contents()
    assert {name.split("/")[1] for name in there if name.startswith("checkpoints/")} == {"8", "12"}
    assert {name for name in there if name.startswith("checkpoints/12/")} == {
        "checkpoints/12/a", "checkpoints/12/manifest.json"}
    assert there["metrics.jsonl"] == b"{}\n"


def test_uploads_happen_during_training_and_are_retried(home, monkeypatch, caplog):
    failures, write = iter([OSError(5, "no route")] * 3), mirror.Store.write

    def flaky(self, name, content):
        if name == "metrics.jsonl" and (failure := next(failures, None)):
            raise failure
        write(self, name, content)

    monkeypatch.setattr(mirror.Store, "write", flaky)
    with mirror.mirrored(URL, every=0.01) as local:
        shutil.copytree(home / "run", local, dirs_exist_ok=True)
        until(lambda: mirror.complete_steps(mirror.open_store(URL).names()) == [4, 8, 12])
    assert caplog.text.count("no route; trying again every 0.01 s") == 1


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_fault_and_failed_upload_are_reported_together(home, monkeypatch):
    monkeypatch.setattr(mirror.Mirror, "push", lambda self: 1 / 0)
    with pytest.raises(RunFault, match=r"the loss is nan\. And .*ZeroDivisionError"), mirror.mirrored(URL):
        raise RunFault("the loss is nan")
    with pytest.raises(KeyError), mirror.mirrored(URL):  # a bug stays what it is
        raise KeyError


# The copies


def test_store_takes_precedence_after_another_machine_uploaded(home, machine):
    local = copied(home / "run")
    elsewhere = shutil.move(machine, machine.with_name("elsewhere"))
    with mirror.mirrored(URL) as other:
        assert small.contents(other / "checkpoints") == small.contents(home / "run/checkpoints")
        (other / "metrics.jsonl").write_text("theirs\n")
        shutil.rmtree(other / "checkpoints/12")
    shutil.rmtree(machine)
    shutil.move(elsewhere, machine)
    (local / "metrics.jsonl").write_text("ours\n")
    with mirror.mirrored(URL):
        assert (local / "metrics.jsonl").read_text() == "theirs\n"
        assert sorted(p.name for p in (local / "checkpoints").iterdir()) == ["4", "8"]


def test_incomplete_local_copy_is_discarded(home, monkeypatch):
    local = copied(home / "run")
    shutil.rmtree(local)
    with monkeypatch.context() as patch:
        patch.setattr(mirror.Store, "download", lambda *_: 1 / 0)  # the fetching is broken off
        with pytest.raises(UserError, match="cannot reach memory://runs/small: ZeroDivisionError"), \
                mirror.mirrored(URL):
            pass
    with mirror.mirrored(URL):
        assert mirror.complete_steps(contents()) == [4, 8, 12] and (local / "checkpoints/12/manifest.json").exists()


def test_store_with_an_incomplete_listing_is_refused(home, monkeypatch):
    local = copied(home / "run")
    monkeypatch.setattr(mirror.Store, "names", lambda self: [])
    with pytest.raises(UserError, match="cannot reach"), mirror.mirrored(URL):
        pass
    assert (local / "checkpoints/12/manifest.json").exists()


def test_damaged_checkpoint_is_skipped_in_reading(home, machine, caplog):
    copied(home / "run")
    shutil.rmtree(machine)
    store = mirror.open_store(URL)
    name = max((n for n in store.names() if n.startswith("checkpoints/12/")), key=lambda n: len(store.read(n)))
    content = store.read(name)
    store.write(name, content[:-1] + bytes([content[-1] ^ 1]))
    assert lmrep.load(URL).step == 8
    assert "checkpoint 12 in memory://runs/small is damaged" in caplog.text
    with pytest.raises(UserError, match=f"{URL} holds no checkpoint 5; it holds 4, 8, 12"):
        lmrep.load(URL, 5)


# The lock


def test_two_machines_do_not_train_one_run(home, machine, monkeypatch):
    def write_mark(**fields):
        mirror.open_store(URL).write(claims.MARK, json.dumps({
            "copy": "theirs", "held": True, "host": "other", "process": 1, "time": time.time(), **fields}).encode())

    def train_here():
        with mirror.mirrored(URL):
            pass

    write_mark(time=time.time() - 60)
    with pytest.raises(UserError, match=f"{URL} is in use by process 1 on other, last active 6. s ago"):
        train_here()
    assert claims.mark(mirror.open_store(URL))["copy"] == "theirs"
    write_mark(time=time.time() - claims.SILENT - 1)
    train_here()
    write_mark(held=False)
    train_here()
    write_mark(host=socket.gethostname(), process=os.getpid())  # by another copy of this machine
    with pytest.raises(UserError, match="in use"):
        train_here()
    write_mark(host=socket.gethostname(), process=2**22 + 1)  # which is gone
    train_here()
    with mirror.mirrored(URL), pytest.raises(UserError, match="in use by process"):
        train_here()
    with pytest.raises(RunFault, match="process 1 on other has taken"), mirror.mirrored(URL) as local:
        shutil.copytree(home / "run", local, dirs_exist_ok=True)
        write_mark()
    assert mirror.open_store(URL).names() == [claims.MARK] and claims.mark(mirror.open_store(URL))["copy"] == "theirs"


def test_multiple_writing_processes_are_refused(monkeypatch, home):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"2 processes .* mount it"):
        train(home)


# What is said beforehand


def test_doctor_checks_the_store(home, machine):
    def examined(**fields):
        config = small.config(home / "texts")
        config.update_from_flattened_dict({"mesh.data": -1, **fields})
        return {finding.check: finding for finding in doctor.examine(config, URL, home / "data")}

    findings = examined()
    assert not [f for f in findings.values() if f.mark == doctor.FAILED] and findings["resuming"].text == "a new run"
    assert mirror.open_store(URL).names() == [] and not (machine / "workdirs").exists()
    copied(home / "run")
    shutil.rmtree(machine)
    findings = examined()
    assert "resumes from step 12 of 12" in findings["resuming"].text and "3 checkpoints" in findings["remote"].text
    findings = examined(seed=1)
    assert findings["resuming"].mark == doctor.FAILED and f"{URL} holds a run of another" in findings["resuming"].text
    with mirror.mirrored(URL):
        shutil.move(machine, machine.with_name("elsewhere"))
        assert "in use by process" in examined()["remote"].text
        shutil.rmtree(machine, ignore_errors=True)
        shutil.move(machine.with_name("elsewhere"), machine)


@pytest.mark.parametrize("url, message", [
    ("gs://bucket/x", r"gs:// needs a package .* pip install gcsfs"),
    ("nonsense://x", r"--workdir 'nonsense://x': Protocol not known"),
])
def test_protocol_without_its_package_is_refused(home, url, message):
    for action in (lambda: train(home, url), lambda: lmrep.load(url)):
        with pytest.raises(UserError, match=message):
            action()


def test_urls_are_recognized():
    assert remote.as_url("runs/x") is remote.as_url(Path("/runs/x")) is remote.as_url("runs/a:b") is None
    assert remote.as_url("gs://b/x/") == remote.as_url(Path("gs://b/x")) == "gs://b/x"
    with pytest.raises(UserError, match="there is no run in runs/none"):
        load.load("runs/none")
