"""What a run came from is recorded, with or without git; what changed between two configs is named by path."""

import json
import subprocess

import jax
import pytest

from lmrep.core.errors import RunFault
from lmrep.storage import jsonl, provenance
from lmrep.storage.provenance import differences


def test_record_names_command_versions_devices_and_config(tmp_path):
    config = {"optimizer": {"learning_rate": 0.1}, "stages": (1, 2)}
    for _ in range(2):
        jsonl.append(tmp_path / provenance.FILE, provenance.record(["lmrep", "train", "--config=a b.py"], config))
    first, second = [json.loads(line) for line in (tmp_path / "provenance.jsonl").read_text().splitlines()]
    assert first["command"] == second["command"] == "lmrep train '--config=a b.py'"
    assert first["config"] == {"optimizer": {"learning_rate": 0.1}, "stages": [1, 2]}
    assert first["versions"]["jax"] == jax.__version__
    assert set(first["versions"]) == {"python", *provenance.PACKAGES}
    assert first["devices"] == {"platform": "cpu", "kind": jax.devices()[0].device_kind, "count": jax.device_count(),
                                "processes": 1}


def test_failed_record_write_is_a_fault(tmp_path):
    with pytest.raises(RunFault, match=r"provenance\.jsonl cannot be written"):
        jsonl.append(tmp_path / "absent" / provenance.FILE, {})


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository without a commit, and a function that runs git in it."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    root = tmp_path / "code"
    root.mkdir()

    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", "-C", root, *name, *arguments], check=True, capture_output=True, text=True).stdout

    git("init")
    return root, git


def test_git_gives_commit_status_and_a_bounded_diff(repository):
    root, git = repository
    (root / "a.py").write_text("one\n")
    assert provenance.git(root) is None  # no commit yet
    git("add", "a.py")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert provenance.git(root) == {"commit": commit, "status": "", "diff": ""}
    (root / "a.py").write_text("two\n")
    (root / "new.py").write_text("")
    state = provenance.git(root)
    assert state["commit"] == commit and "-one\n+two\n" in state["diff"] and state["status"] == " M a.py\n?? new.py\n"
    assert provenance.git(root / ".git") is None
    (root / "a.py").write_text("two\n" * 400_000)
    diff = provenance.git(root)["diff"]
    assert diff.endswith("\n[truncated]\n") and len(diff.removesuffix("\n[truncated]\n")) == 1_000_000


def test_missing_repository_or_git_is_no_error(repository, tmp_path, monkeypatch):
    root, git = repository
    git("commit", "--allow-empty", "-m", "first")
    (root / "inside").mkdir()
    assert provenance.git(root) is not None
    assert provenance.git(tmp_path) is None
    assert provenance.git(root / "inside") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git(root) is None
    assert provenance.record(["lmrep"], {})["code"] is None


def test_differences_are_named_by_path_unless_ignored():
    old = {"optimizer": {"learning_rate": 0.0001, "name": "adamw"}, "mesh": {"data": 1}, "steps": 10, "gone": None}
    new = {"optimizer": {"learning_rate": 0.0003, "name": "lamb"}, "mesh": {"data": 8}, "steps": 20, "came": []}
    assert differences(old, new, ("mesh.*", "steps")) == [
        "optimizer.learning_rate: 0.0001 -> 0.0003",
        "optimizer.name: 'adamw' -> 'lamb'",
        "gone: None -> absent",
        "came: absent -> []",
    ]
    assert differences(old, old) == []
    assert differences(old, new, ("*",)) == []
    many = differences({"labels": ["a"] * 1500}, {"labels": ["b"] * 1500})
    assert many[0] == "labels.0: 'a' -> 'b'" and many[-1] == "and 1,460 other fields or items" and len(many) == 41


def test_differences_in_lists_survive_json():
    stages = ({"steps": 1, "rates": {}}, {"steps": 2, "rates": {"a": 0.1}})
    config = {"stages": stages, "none": (), "betas": (0.9, 0.98)}
    saved = json.loads(json.dumps(config))
    assert differences(saved, config) == []
    saved["stages"][1]["rates"]["a"] = 0.2
    saved["betas"].append(1)
    assert differences(saved, config) == ["stages.1.rates.a: 0.2 -> 0.1", "betas.2: 1 -> absent"]
    assert differences(saved, config, ("stages.*.rates.*", "betas*")) == []


def test_ignore_pattern_does_not_match_mere_prefixes():
    assert differences({"log": 1, "logging": 1}, {"log": 2, "logging": 2}, ("log",)) == ["logging: 1 -> 2"]
