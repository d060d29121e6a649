"""Runs in a remote store, which fsspec's store in memory stands for."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import fsspec
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import lmrep
from lmrep import doctor
from lmrep.core import object_store, remote
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.files import seal, signed
from lmrep.core.params import unflatten
from lmrep.inference import load
from lmrep.interop import init_from
from lmrep.storage import lease, orbax, remote_workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.remote_checkpoints import RemoteCheckpoints, complete_steps
from tests import small, started

URL = "memory://runs/small"


@pytest.fixture(scope="module")
def home(small_home):
    return small_home


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine whose copies are in a folder of the test's own, and an empty store; gives that folder."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    monkeypatch.setattr(lease, "SETTLE", 0.0)
    monkeypatch.setattr(lease, "POLL", 0.01)
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    monkeypatch.setattr(remote, "PATIENCE", 0.05)
    monkeypatch.setattr(remote_workdir, "LAST_PATIENCE", 0.05)
    system = fsspec.filesystem("memory")
    for name in system.find("/"):
        system.rm_file(name)
    return tmp_path / "machine"


def train(home, url=URL, **fields):
    config = small.config(home / "texts")
    config.update_from_flattened_dict(fields)
    return lmrep.train(config, url, data_dir=home / "data")


def store(url=URL) -> remote.Store:
    return remote_workdir.open_store(url)


def contents(url=URL) -> dict[str, bytes]:
    return {name: store(url).read(name) for name in store(url).names() if name != lease.LEASE}


def uploaded(directory: Path, url: str = URL) -> None:
    """Puts the run of a directory into the store."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            store(url).upload(path, path.relative_to(directory).as_posix())


def refusing(monkeypatch, method: str, failures, name: str = "") -> None:
    """Lets the store's `method` raise the next of `failures`, until there is none, for names that contain `name`."""
    usual = getattr(remote.Store, method)

    def refuse(self, *arguments):
        if any(name in str(argument) for argument in arguments) and (failure := next(failures, None)):
            raise failure
        return usual(self, *arguments)

    monkeypatch.setattr(remote.Store, method, refuse)


# Training


@pytest.mark.slow
def test_run_is_complete_in_the_store_and_resumes_elsewhere(home, machine, monkeypatch):
    """Stopped after step 4, and taken up by a machine that has nothing of it, it ends as one that was never stopped."""
    save = Checkpoints.save

    def save_and_stop(self, *args, **kwargs):
        save(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match="stopped at step 5"):
        patch.setattr(Checkpoints, "save", save_and_stop)
        train(home)
    assert complete_steps(contents()) == [4, 5]
    shutil.rmtree(machine)
    outcome = train(home)

    assert outcome.steps == 12
    there, local = contents(), small.contents(home / "run")
    assert there["metrics.jsonl"] == (home / "run/metrics.jsonl").read_bytes()
    assert complete_steps(there) == [5, 8, 12]
    same = [name for name in local if name.startswith("tokenizer/")] + ["config.json", "timing.jsonl"]
    assert there.keys() >= {*same, "provenance.jsonl"} and not any("unfinished" in name for name in there)
    assert len(there["provenance.jsonl"].splitlines()) == 2
    assert lease.read(store()) == {}

    shutil.rmtree(machine)
    mine, run = lmrep.load(home / "run"), lmrep.load(URL)
    jax.tree.map(np.testing.assert_array_equal, mine.params, run.params)
    assert not (run.directory / "checkpoints").exists()  # it was read from the store
    assert lmrep.load(URL, 5).step == 5
    metrics = [lmrep.evaluate(URL, data_dir=home / "data", examples=number) for number in (4, 8)]
    assert json.loads(contents()["eval.json"])["metrics"] == metrics[1]
    assert [json.loads(line)["metrics"] for line in contents()["eval.jsonl"].splitlines()] == metrics

    other = b'{"metrics": {"loss": 1.0}}\n'  # of another machine, meanwhile
    store().write("eval.jsonl", contents()["eval.jsonl"] + other)
    lmrep.evaluate(URL, data_dir=home / "data", examples=2)
    lines = contents()["eval.jsonl"].splitlines(keepends=True)
    assert len(lines) == 4 and lines[2] == other


def test_commands_accept_the_url_as_workdir(home, machine):
    uploaded(home / "run")
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


@pytest.mark.slow
def test_a_run_starts_from_a_run_or_a_published_checkpoint_in_a_store(home, machine, tmp_path):
    uploaded(home / "run")
    answer = small.command("convert", URL, tmp_path / "published", "--to=huggingface")
    assert answer.code == 0, answer.err
    published = "memory://models/published"
    uploaded(tmp_path / "published", published)
    answer = small.command("convert", published, tmp_path / "back")
    assert answer.code == 0, answer.err
    assert "equal: all" in small.command("diff", published, tmp_path / "back").out
    trained = lmrep.load(home / "run").params["encoder"]
    for url in (URL, published):
        config = small.config(home / "texts")
        config = started.from_checkpoint(config, url)
        assert config.init == url and config.tokenizer.vocab_file == (f"{URL}/tokenizer" if url == URL else url)
        source = unflatten(dict(init_from.load(url).params))["encoder"]
        jax.tree.map(np.testing.assert_array_equal, trained, source)
    config.steps, config.checkpoint.every, config.evaluation.every = 2, 2, 2
    lmrep.train(config, tmp_path / "run", data_dir=home / "data")
    shutil.rmtree(machine)
    lmrep.train(config, tmp_path / "run", data_dir=home / "data")  # on another machine
    with pytest.raises(UserError, match=r"init is 'memory://models/none'.* there is no run in memory://models/none"):
        init_from.directory_of("memory://models/none")


def test_refused_run_does_not_change_the_store(home):
    with pytest.raises(UserError, match="batch_size"):
        train(home, batch_size=7, **{"mesh.data": 2})
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        train(home, **{"tokenizer.vocab_file": "/nowhere/vocab.txt"})
    assert store().names() == []


# Uploads


def test_interrupted_upload_leaves_the_previous_checkpoint(machine, monkeypatch):
    def cut_off(self, name, content):
        if name.startswith("checkpoints/8/") and next(writes, None) is None:
            raise ConnectionError("the line is cut")
        write(self, name, content)

    write, writes = remote.Store.write, iter(range(3))
    monkeypatch.setattr(remote.Store, "write", cut_off)
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.save(4, {name: np.full(3, 4) for name in "xyzuv"}, {})
        checkpoints.save(8, {name: np.full(3, 8) for name in "xyzuv"}, {})
        with pytest.raises(RunFault, match=(
                rf"checkpoint 8 could not be saved in {URL}/checkpoints: ConnectionError: the line is cut")):
            checkpoints.wait()
        checkpoints.close()
    names = store().names()
    assert len([name for name in names if name.startswith("checkpoints/8/")]) == 3 and complete_steps(names) == [4]
    monkeypatch.setattr(remote.Store, "write", write)
    shutil.rmtree(machine)
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        assert checkpoints.newest() == 4 and checkpoints.read(4)[0]["x"].tolist() == [4] * 3
        checkpoints.save(8, {"x": np.full(3, 80)}, {})
        checkpoints.wait()
        assert checkpoints.newest() == 8 and checkpoints.read(8)[0]["x"].tolist() == [80] * 3
        assert not checkpoints.directory.exists()
        checkpoints.close()
    assert complete_steps(store().names()) == [4, 8]


@pytest.mark.slow
def test_store_that_refuses_for_a_while_delays_the_run(home, monkeypatch, caplog):
    monkeypatch.setattr(remote, "PATIENCE", 60.0)
    for method, name in (("write", "checkpoints/4"), ("write", "manifest.json"), ("read", "checkpoints"),
                         ("remove", "checkpoints"), ("write", "metrics.jsonl")):
        refusing(monkeypatch, method, iter([OSError(5, "no route")] * 3), name)
    train(home, **{"checkpoint.keep": 1})
    assert complete_steps(store().names())[-1] == 12
    assert contents()["metrics.jsonl"] == (home / "run/metrics.jsonl").read_bytes()
    assert f"{URL} refuses: no route; trying again every 0.01 s for at most 60 s" in caplog.text


def test_fsspec_writes_where_tensorstore_cannot(machine, monkeypatch, caplog):
    monkeypatch.setattr(object_store, "native", lambda store: {"driver": "file", "path": "/dev/null/"})
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        assert f"TensorStore cannot write to {URL}, but fsspec can: " in caplog.text
        checkpoints.save(1, {"x": np.ones(3)}, {})
        checkpoints.wait()
        assert checkpoints.read(1)[0]["x"].tolist() == [1.0] * 3
        checkpoints.close()
    assert complete_steps(store().names()) == [1]


def test_checkpoints_that_the_run_goes_back_before_are_removed(home, machine):
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints", keep=2, keep_best=0)
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": np.full(3, step)}, {})
        checkpoints.wait()
        assert complete_steps(store().names()) == checkpoints.steps() == [2, 3]
        checkpoints.drop_after(2)
        assert {name.split("/")[1] for name in store().names("checkpoints")} == {"2"}
        checkpoints.save(2, {"x": np.full(3, 20)}, {"again": True})  # replaced
        checkpoints.wait()
        assert checkpoints.newest() == 2 and checkpoints.meta(2) == {"again": True}
        assert checkpoints.read(2)[0]["x"].tolist() == [20] * 3
        checkpoints.close()


def test_fault_and_failed_upload_are_reported_together(home, monkeypatch):
    monkeypatch.setattr(remote_workdir.Logs, "push", lambda self: 1 / 0)
    with pytest.raises(RunFault, match=r"the loss is nan\. And .*ZeroDivisionError"), remote_workdir.training(URL):
        raise RunFault("the loss is nan")
    with pytest.raises(KeyError), remote_workdir.training(URL):  # a bug stays what it is
        raise KeyError


def test_logs_are_uploaded_while_the_run_trains(home, monkeypatch, caplog):
    refusing(monkeypatch, "write", iter([OSError(5, "no route")] * 3), "metrics.jsonl")
    with remote_workdir.training(URL, every=0.01) as run:
        for name in ("config.json", "metrics.jsonl"):
            shutil.copy(home / "run" / name, run.directory)
        until(lambda: "metrics.jsonl" in store().names())
    assert caplog.text.count("no route; trying again every 0.01 s") == 1


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The copies


def test_the_store_alone_counts(home, machine):
    """What this machine has left in its directory does not."""
    uploaded(home / "run")
    with pytest.raises(UserError, match="refused"), remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        assert checkpoints.newest() == 12 and (run.directory / "checkpoints/12/manifest.json").exists()
        (run.directory / "metrics.jsonl").write_text("later\n")
        (run.directory / "checkpoints/16").mkdir()
        (run.directory / "checkpoints/.unfinished-16").mkdir()
        checkpoints.close()
        store().remove("checkpoints/12")
        raise UserError("refused")  # so that nothing is uploaded at the end
    with remote_workdir.training(URL) as run:
        assert (run.directory / "metrics.jsonl").read_bytes() == (home / "run/metrics.jsonl").read_bytes()
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        assert checkpoints.newest() == 8 and {p.name for p in checkpoints.directory.iterdir()} == {"8"}
        checkpoints.close()


def test_store_with_an_incomplete_listing_is_refused(home, monkeypatch):
    monkeypatch.setattr(remote.Store, "names", lambda self: [])
    with pytest.raises(UserError, match="cannot reach"), remote_workdir.training(URL):
        pass


def flip(name: str) -> None:
    content = store().read(name)
    store().write(name, content[:-1] + bytes([content[-1] ^ 1]))


def test_damaged_checkpoint_is_skipped_in_reading(home, machine, caplog):
    uploaded(home / "run")
    flip(max((n for n in store().names("checkpoints/12")), key=lambda n: len(store().read(n))))
    assert lmrep.load(URL).step == 8
    assert f"checkpoint 12 in {URL}/checkpoints is damaged" in caplog.text
    store().remove(next(n for n in store().names("checkpoints/8") if "manifest" not in n))
    assert lmrep.load(URL).step == 8  # the local copy
    shutil.rmtree(machine)
    assert lmrep.load(URL).step == 4
    with pytest.raises(UserError, match=f"{URL} holds no checkpoint 5; it holds 4, 8, 12"):
        lmrep.load(URL, 5)


@pytest.mark.parametrize("fault", ["a changed bit", "a missing file"])
def test_run_continues_from_the_checkpoint_before_a_damaged_one(home, machine, fault, caplog):
    train(home)
    name = next(name for name in store().names("checkpoints/12") if "/opt_state/" in name)
    flip(name) if fault == "a changed bit" else store().remove(name)
    assert lmrep.load(URL).step == 12  # whose parameters are whole
    train(home)
    assert caplog.text.count(f"checkpoint 12 in {URL}/checkpoints is damaged and skipped: ") == 1
    assert f'in "{name}"' in caplog.text
    assert complete_steps(contents()) == [4, 8, 12]
    assert contents()["metrics.jsonl"] == (home / "run/metrics.jsonl").read_bytes()
    assert lmrep.load(URL).step == 12  # it was replaced
    name = next(name for name in store().names("checkpoints/12") if "/params/" in name)
    flip(name) if fault == "a changed bit" else store().remove(name)
    assert lmrep.load(URL).step == 8
    with pytest.raises(RunFault, match=f"checkpoint 12 in {URL}/checkpoints cannot be used: .*params"):
        lmrep.load(URL, 12)
    assert not list(machine.rglob("checkpoints"))  # nothing is copied


def test_best_checkpoint_is_the_one_that_is_read(home, machine):
    uploaded(home / "run")
    record = json.loads(contents()["config.json"])
    record["config"]["checkpoint"]["load"] = "best"
    store().write("config.json", json.dumps(record).encode())
    best = Checkpoints(home / "run/checkpoints").best()
    assert lmrep.load(URL).step == lmrep.load(URL, best).step == best


def test_checkpoints_of_earlier_versions_are_read(machine, tmp_path):
    """Orbax wrote them, to one database for each process."""
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=orbax.ALONE)
    handler.finalize = lambda directory: None
    x = np.arange(3, dtype=np.float32)
    with ocp.AsyncCheckpointer(handler, multiprocessing_options=orbax.ALONE) as checkpointer:
        checkpointer.save(orbax.LiteralPath(tmp_path / "run/checkpoints/1"), args=ocp.args.PyTreeSave({"x": x}))
    seal(tmp_path / "run/checkpoints/1", {"step": 1, "score": None, "meta": {}, "arrays": {"x": "float32[3]"}})
    uploaded(tmp_path / "run")
    assert {name.split("/")[2] for name in store().names()} >= {"ocdbt.process_0", "manifest.json"}
    with remote_workdir.training(URL) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        assert checkpoints.newest() == 1
        for _ in range(2):
            restored, _ = checkpoints.restore(1, {"x": jax.ShapeDtypeStruct((3,), np.float32)})
            np.testing.assert_array_equal(restored["x"], x)
            assert not any(checkpoints.directory.iterdir())
        checkpoints.close()
    flip(next(name for name in store().names() if "/d/" in name))
    with remote_workdir.training(URL) as run, pytest.raises(RunFault, match="SHA-256 differs"):
        run.checkpoints(run.directory / "checkpoints").newest()


def test_manifest_cannot_name_files_outside_of_its_directory(machine, tmp_path):
    seal(tmp_path, {"step": 1, "score": None, "meta": {}, "arrays": {}})
    content = json.loads((tmp_path / "manifest.json").read_bytes())
    del content["sha256"]
    content["files"] = {"../../config.json": [0, ""]}
    store().write("checkpoints/1/manifest.json", json.dumps(signed(content)).encode())
    checkpoints = RemoteCheckpoints(tmp_path / "checkpoints", store=store())
    store().write("config.json", b"theirs")
    with pytest.raises(RunFault, match=r"\.\./\.\./config.json is missing"):
        checkpoints.newest()
    checkpoints.close()


# What is said beforehand


@pytest.mark.slow
def test_doctor_checks_the_store(home, machine):
    def examined(**fields):
        config = small.config(home / "texts")
        config.update_from_flattened_dict({"mesh.data": -1, **fields})
        return {finding.check: finding for finding in doctor.examine(config, URL, home / "data")}

    findings = examined()
    assert not [f for f in findings.values() if f.mark == doctor.FAILED] and findings["resuming"].text == "a new run"
    assert store().names() == [] and not (machine / "workdirs").exists()
    uploaded(home / "run")
    findings = examined()
    assert "resumes from step 12 of 12" in findings["resuming"].text and "3 checkpoints" in findings["remote"].text
    findings = examined(seed=1)
    assert findings["resuming"].mark == doctor.FAILED and f"{URL} holds a run of another" in findings["resuming"].text
    with remote_workdir.training(URL):
        assert "in use by process" in examined()["remote"].text


@pytest.mark.parametrize("url, message", [
    ("az://bucket/x", r"az:// needs a package .* pip install adlfs"),
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
