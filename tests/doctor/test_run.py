"""What `lmrep doctor` finds of a run: each thing is broken for real, and named with its mend."""

import contextlib
import socket
from pathlib import Path

import pytest

from lmrep import doctor
from lmrep.data.formats import FORMATS
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.doctor import examined, failed


def spoil(path: Path, at: int = -1) -> None:
    """Flips a bit of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# A run that has what it needs


def test_before_and_after_a_healthy_run_nothing_fails_and_nothing_is_written(home, config, tmp_path):
    before = small.contents(home)
    fresh = examined(config, tmp_path / "new/run", tmp_path / "new/data", files=f"{home}/texts/0*.txt")
    assert {finding.mark for finding in fresh.values()} == {doctor.OK, doctor.SKIPPED}
    assert [name for name, finding in fresh.items() if finding.mark == doctor.SKIPPED] == ["examples"]
    assert "not built yet" in fresh["store"].text and fresh["resuming"].text == "a new run"
    assert not (tmp_path / "new").exists()
    there = examined(config, home / "run", home / "data")
    assert {finding.mark for finding in there.values()} == {doctor.OK}
    assert "all 12 steps are done" in there["resuming"].text and "train" in there["store"].text
    assert small.contents(home) == before


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_tried_on_the_text(home, name):
    config = small.config(home / "texts", format=name)
    assert examined(config, None, home / "data")["examples"].mark == doctor.OK


def test_without_a_workdir_what_is_about_it_is_skipped(config, tmp_path):
    found = examined(config, None, tmp_path)
    skipped = {name: finding.text for name, finding in found.items() if finding.mark == doctor.SKIPPED}
    assert skipped.keys() == {"examples", "workdir", "resuming", "checkpoints", "dashboards"}
    assert skipped["workdir"] == "needs --workdir" and not failed(found)


def test_the_command_prints_a_line_a_check_and_exits_2_where_one_failed(home, tmp_path):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--workdir={home / 'run'}",
             f"--data_dir={home / 'data'}", "--config.mesh.data=-1")
    answer = small.command("doctor", *words)
    *lines, blank, last = answer.out.splitlines()
    assert answer.code == 0 and all(line.startswith("ok ") for line in lines) and not blank
    assert last == f"{len(lines)} checks: {len(lines)} ok; the run has what it needs."
    answer = small.command("doctor", *words, "--config.mesh.tensor=3", "--config.data.files=none/*.txt")
    marks = [line.split()[:2] for line in answer.out.splitlines()]
    assert answer.code == 2 and ["FAILED", "mesh"] in marks and ["FAILED", "corpus"] in marks
    assert ["ok", "dashboards"] in marks and ["skipped", "memory"] in marks


def test_one_of_several_processes_tells_what_failed_on_its_host(home, tmp_path, monkeypatch):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--data_dir={home / 'data'}",
             "--config.mesh.data=-1", "--config.batch_size=32", "--config.data.files=none/*.txt")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "elsewhere:1234")  # where nobody is asked
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert "16 x 1 x 1 on 16 x cpu, of which 8 are here" in small.command("doctor", *words).out
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    [line] = (answer := small.command("doctor", *words)).out.splitlines()
    assert answer.code == 2 and line.startswith("process 1 on ") and "FAILED corpus data.files 'none/*.txt'" in line


# The config


def test_a_config_that_does_not_fit_is_named_and_what_needs_none_is_checked(config, home):
    config.length = 64
    found = examined(config, home / "run", home / "data")
    assert "model.max_length to 64" in failed(found)["config"] and found["workdir"].mark == doctor.OK
    assert found["corpus"] == doctor.Finding(doctor.SKIPPED, "corpus", "needs config")


# The workdir


def test_a_workdir_that_another_run_holds(home, config):
    with workdir.lock(home / "run"):
        said = failed(examined(config, home / "run", home / "data"))
    assert said.keys() == {"workdir"} and "in use by process" in said["workdir"] and "wait" in said["workdir"]


def test_a_workdir_and_a_data_directory_that_cannot_be(config, tmp_path):
    (tmp_path / "file").write_text("")
    said = failed(examined(config, tmp_path / "file/run", tmp_path / "file/data"))
    assert "give another --workdir" in said["workdir"] and "give another --data_dir" in said["store"]


def test_damaged_checkpoints_are_listed_and_refused_where_none_is_left(home, config, copied):
    *_, before, last = Checkpoints(copied / "checkpoints").steps()
    spoil(max((copied / f"checkpoints/{last}").rglob("d/*"), key=lambda path: path.stat().st_size))
    found = examined(config, copied, home / "data")["resuming"]
    assert found.mark == doctor.WARNING and f"goes on from step {before}" in found.text
    assert f"checkpoint {last} is damaged" in found.text and "SHA-256" in found.text
    for path in (copied / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    assert "none verifies: put an intact copy" in failed(examined(config, copied, home / "data"))["resuming"]


def test_a_run_of_another_config_or_corpus(home, config, tmp_path):
    config.seed = 1
    config.checkpoint.keep = 7  # may differ
    said = failed(examined(config, home / "run", home / "data"))["resuming"]
    assert "config.seed: 0 -> 1" in said and "another --workdir" in said and "keep" not in said
    other = small.config(small.corpus(tmp_path / "texts", 40, seed=5))
    build.prepared(experiments.parse(other), tmp_path / "data")
    assert "data.train: " in failed(examined(other, home / "run", tmp_path / "data"))["resuming"]


def test_a_damaged_record_of_the_run(home, config, copied):
    (copied / "config.json").write_text("{")
    assert "is damaged" in failed(examined(config, copied, home / "data"))["resuming"]


def test_where_parameters_start(home, config, copied, tmp_path):
    config.init = "/nowhere/run"
    assert "no directory" in failed(examined(config, tmp_path / "run", home / "data"))["init"]
    config.init = str(home / "run")
    found = examined(config, tmp_path / "new", home / "data")["init"]
    assert found.mark == doctor.OK and "step 12: " in found.text and " 0 missing" in found.text
    former = copied / "config.json"
    former.write_text(former.read_text().replace('"init": ""', f'"init": "{config.init}"'))
    assert "not looked at" in examined(config, copied, home / "data")["init"].text
    config.model.width = 64
    assert "give the model the sizes" in failed(examined(config, tmp_path / "new", home / "data"))["init"]


# Dashboards


def test_weights_and_biases(home, config, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    config.log.wandb = "project"

    def found():
        return examined(config, tmp_path / "run", tmp_path)["dashboards"]

    with monkeypatch.context() as missing:
        missing.setattr("importlib.util.find_spec", lambda name: None)
        assert found().mark == doctor.FAILED and "pip install" in found().text
    (tmp_path / "wandb.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert found().mark == doctor.FAILED and "WANDB_API_KEY" in found().text
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
        assert found() == doctor.Finding(doctor.OK, "dashboards", "metrics.jsonl, Weights & Biases at 127.0.0.1")
    assert found().mark == doctor.WARNING and "WANDB_MODE=offline" in found().text  # nobody listens any more
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert found().mark == doctor.OK and "offline" in found().text


def test_a_dashboard_that_cannot_be_written(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tensorboard").write_text("")
    config.log.tensorboard = True
    assert "tensorboard is not a directory" in failed(examined(config, tmp_path / "run", tmp_path))["dashboards"]
