"""Checkpoints that tests of them share."""

import pytest

from lmrep.storage.checkpoints import Checkpoints


@pytest.fixture
def opened(tmp_path):
    """Makes `Checkpoints` in one directory, and closes them."""
    made = []

    def make(**options):
        made.append(Checkpoints(tmp_path / "checkpoints", **options))
        return made[-1]

    yield make
    for checkpoints in made:
        checkpoints.close()
