"""A corpus, a run trained on it, and its config."""

import shutil

import pytest

from lmrep.experiment import shapes
from tests import small

CHECK, CHECKED = shapes.check_contracts, set()


@pytest.fixture(autouse=True)
def contracts_are_checked_once(monkeypatch):
    """Components that have kept their contracts are not traced again."""
    def check(e):
        key = repr((e.model, e.objective, e.format, e.optimizer, e.stages, e.steps, e.length, e.tokenizer, e.execution,
                    e.checkpoint, sorted(e.frozen)))
        if key not in CHECKED:
            CHECK(e)
            CHECKED.add(key)

    monkeypatch.setattr(shapes, "check_contracts", check)


@pytest.fixture(scope="module")
def home(small_home):
    return small_home


@pytest.fixture
def config(home):
    config = small.config(home / "texts")
    config.mesh.data = -1
    return config


@pytest.fixture
def copied(home, tmp_path):
    """The run, in a folder of the test's own."""
    shutil.copytree(home / "run", tmp_path / "run")
    return tmp_path / "run"
