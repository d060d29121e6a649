"""`lmrep score` on files that a test writes; and commands on one run, which load it once."""

import functools
import json
from pathlib import Path

import pytest

from lmrep import api
from lmrep.cli import main as shell


@functools.lru_cache(maxsize=8)
def loaded(directory, step, files):
    """A run with its compiled programs, as long as its `files` do not change."""
    return LOAD(directory, step)


LOAD = api.load


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    def load(directory, step=None, ensemble=""):
        assert not ensemble
        files = [path for path in Path(directory).rglob("*") if path.name != ".lock"]
        state = {(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()}
        return loaded(directory, step, frozenset(state))

    monkeypatch.setattr(api, "load", load)


@pytest.fixture
def score(capsys, tmp_path, monkeypatch):
    """Writes files (name -> content) to the current directory and runs a command: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words, **contents):
        for name, content in contents.items():
            path = tmp_path / name.replace("_", ".")
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf8")
        return shell.main(["score", *words]), *capsys.readouterr()

    return call
