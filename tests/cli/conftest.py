"""`lmrep score` on files that a test writes."""

import json

import pytest

from lmrep.cli import main as shell


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
