"""A corpus, a run trained on it, and its config."""

import shutil

import pytest

from tests import small


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
