"""A new workdir is tried: names with wildcards work, and those that cannot hold checkpoints are refused in time."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.core.errors import RunFault
from lmrep.storage import trial
from lmrep.storage.checkpoints import Checkpoints
from tests import small

NAMES = ["a[b]c", "[", "x]", "*", "?", "{a,b}", "[!x]/[0-9]", "a b", "%20", "#", "ü", "a\nb", "~", "-x", "$x"]


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_are_read_whatever_the_workdir_is_called(tmp_path, name):
    trial.try_checkpoint(tmp_path / name)
    assert not list(tmp_path.iterdir())
    (tmp_path / name / "other").mkdir(parents=True)
    trial.try_checkpoint(tmp_path / name)
    assert [path.name for path in (tmp_path / name).iterdir()] == ["other"]


def test_workdir_that_does_not_give_back_what_was_saved_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "read", lambda *_: ({"array": np.zeros((2, 3))}, {}))
    with pytest.raises(RunFault, match="is not read as it was saved"):
        trial.try_checkpoint(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_workdir_that_cannot_hold_a_checkpoint_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(RunFault, match="run cannot hold checkpoints: No space left on device; fix that"):
        trial.try_checkpoint(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_workdir_without_room_for_a_checkpoint_is_refused_before_anything_is_written(small_home, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000))
    result = small.command("train", f"--config={small_home}/small.py", f"--data_dir={small_home}/data",
                           f"--workdir={tmp_path}/run")
    assert result.code == 3 and f"workdir {tmp_path}/run has no room for a checkpoint" in result.err
    assert " and 50 kB are free; free space" in result.err and not list(tmp_path.iterdir())


def test_remains_of_killed_saves_are_room_for_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    remains = tmp_path / "checkpoints" / ".unfinished-3.x" / "d"
    remains.mkdir(parents=True)
    (remains / "array").write_bytes(bytes(50))
    (tmp_path / "checkpoints" / "2").write_bytes(bytes(50))
    trial.check_space(tmp_path, 150)
    with pytest.raises(RunFault, match="need 151 B, and 150 B are free"):
        trial.check_space(tmp_path, 151)
