"""A corpus, a run trained on it, and its config."""

import shutil

import pytest

import lmrep
from tests import small


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder with a corpus in `texts`, and a run trained on it in `run`, whose stores are in `data`."""
    home = tmp_path_factory.mktemp("doctor")
    small.corpus(home / "texts")
    lmrep.train(small.config(home / "texts"), home / "run", data_dir=home / "data")
    return home


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
