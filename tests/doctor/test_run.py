"""`lmrep doctor` on runs: each problem is real, and is reported with its fix."""

import contextlib
import socket
from pathlib import Path

import pytest

from lmrep import doctor
from lmrep.data.formats import FORMATS
from lmrep.doctor import run
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.cases import slow_after
from tests.doctor import examined, failed


def flip_bit(path: Path, at: int = -1) -> None:
    """Flips a bit of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# A run that has what it needs


def test_nothing_fails_and_nothing_is_written_before_and_after_a_run(home, config, tmp_path):
    before = small.contents(home)
    before_run = examined(config, tmp_path / "new/run", tmp_path / "new/data", files=f"{home}/texts/0*.txt")
    assert {finding.mark for finding in before_run.values()} == {doctor.OK, doctor.SKIPPED}
    assert [name for name, finding in before_run.items() if finding.mark == doctor.SKIPPED] == ["examples"]
    assert "not built yet" in before_run["store"].text and before_run["resuming"].text == "a new run"
    assert not (tmp_path / "new").exists()
    after_run = examined(config, home / "run", home / "data")
    assert {finding.mark for finding in after_run.values()} == {doctor.OK}
    assert "all 12 steps are done" in after_run["resuming"].text and "train" in after_run["store"].text
    assert small.contents(home) == before


@pytest.mark.parametrize("name", slow_after(3, FORMATS))
def test_every_format_is_applied_to_the_text(home, name):
    config = small.config(home / "texts", format=name)
    assert examined(config, None, home / "data")["examples"].mark == doctor.OK


def test_without_a_workdir_its_checks_are_skipped(config, tmp_path):
    found = examined(config, None, tmp_path)
    skipped = {name: finding.text for name, finding in found.items() if finding.mark == doctor.SKIPPED}
    assert skipped.keys() == {"examples", "workdir", "resuming", "checkpoints", "dashboards"}
    assert skipped["workdir"] == "needs --workdir" and not failed(found)


def test_command_prints_a_line_for_each_check_and_exits_with_2_on_failure(home, tmp_path):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--workdir={home / 'run'}",
             f"--data_dir={home / 'data'}", "--config.mesh.data=-1")
    result = small.command("doctor", *words)
    *lines, blank, last = result.out.splitlines()
    assert result.code == 0 and all(line.startswith("ok ") for line in lines) and not blank
    assert last == f"{len(lines)} checks: {len(lines)} ok; the run has what it needs."
    result = small.command("doctor", *words, "--config.mesh.tensor=3", "--config.data.files=none/*.txt")
    marks = [line.split()[:2] for line in result.out.splitlines()]
    assert result.code == 2 and ["FAILED", "mesh"] in marks and ["FAILED", "corpus"] in marks
    assert ["ok", "dashboards"] in marks and ["skipped", "memory"] in marks


def test_each_process_reports_failures_of_its_host(home, tmp_path, monkeypatch):
    words = (f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--data_dir={home / 'data'}",
             "--config.mesh.data=-1", "--config.batch_size=32", "--config.data.files=none/*.txt")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "elsewhere:1234")  # which is not contacted
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert "16 x 1 x 1 on 16 x cpu, of which 8 are here" in small.command("doctor", *words).out
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    [line] = (result := small.command("doctor", *words)).out.splitlines()
    assert result.code == 2 and line.startswith("process 1 on ") and "FAILED corpus data.files 'none/*.txt'" in line


# The workdir


def test_workdir_in_use_fails(home, config):
    with workdir.lock(home / "run"):
        failures = failed(examined(config, home / "run", home / "data"))
    assert failures.keys() == {"workdir"}
    assert "in use by process" in failures["workdir"] and "wait" in failures["workdir"]


def test_damaged_checkpoints_are_listed_and_fail_where_none_is_intact(home, config, copied):
    *_, before, last = Checkpoints(copied / "checkpoints").steps()
    flip_bit(max((copied / f"checkpoints/{last}").rglob("d/*"), key=lambda path: path.stat().st_size))
    found = examined(config, copied, home / "data")["resuming"]
    assert found.mark == doctor.WARNING and f"resumes from step {before}" in found.text
    assert f"checkpoint {last} is damaged" in found.text and "SHA-256" in found.text
    for path in (copied / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    assert "none verifies: put an intact copy" in failed(examined(config, copied, home / "data"))["resuming"]


def test_run_with_another_config_or_corpus_cannot_be_resumed(home, config, tmp_path):
    config.seed = 1
    config.checkpoint.keep = 7  # may differ
    failures = failed(examined(config, home / "run", home / "data"))["resuming"]
    assert "config.seed: 0 -> 1" in failures and "another --workdir" in failures and "keep" not in failures
    other = small.config(small.corpus(tmp_path / "texts", 40, seed=5))
    build.prepare_data(experiments.parse(other), tmp_path / "data")
    assert "data.train: " in failed(examined(other, home / "run", tmp_path / "data"))["resuming"]


def test_damaged_config_of_the_run_fails(home, config, copied):
    (copied / "config.json").write_text("{")
    assert "is damaged" in failed(examined(config, copied, home / "data"))["resuming"]


def test_initial_parameters_are_loaded_and_matched(home, config, copied, tmp_path):
    config.init = str(home / "run")
    found = examined(config, tmp_path / "new", home / "data")["init"]
    assert found.mark == doctor.OK and "step 12: " in found.text and " 0 missing" in found.text
    config_file = copied / "config.json"
    config_file.write_text(config_file.read_text().replace('"init": ""', f'"init": "{config.init}"'))
    assert "not checked" in examined(config, copied, home / "data")["init"].text
    config.model.width = 64
    assert "use the sizes of that checkpoint" in failed(examined(config, tmp_path / "new", home / "data"))["init"]


# Dashboards


def test_weights_and_biases_needs_a_package_credentials_and_a_server(home, config, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    config.log.wandb = "project"

    def found():
        checks = doctor._Checks({"config": experiments.parse(config), "--workdir": tmp_path / "run"})
        checks("dashboards", run.dashboards, "config", "--workdir")
        return checks.findings[0]

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
    assert found().mark == doctor.WARNING and "WANDB_MODE=offline" in found().text  # the server is closed
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert found().mark == doctor.OK and "offline" in found().text
