"""A new workdir is tried: names with wildcards work, and those that cannot hold checkpoints are refused in time."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.core.errors import RunFault, UserError
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


@pytest.mark.parametrize("name", ["a\\b", "x\\", "gs:/run", "\udcff"])
def test_names_that_cannot_hold_checkpoints_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="cannot hold checkpoints"):
        trial.try_checkpoint(tmp_path / name)
    assert not list(tmp_path.iterdir())


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


def test_loops_of_links_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop/run cannot be used: Too many levels of symbolic links"):
        trial.try_checkpoint(tmp_path / "loop/run")
    for words in (("report", tmp_path / "loop"), ("convert", tmp_path, tmp_path / "loop/x"),
                  ("average", tmp_path, tmp_path / "loop")):
        result = small.command(*words)
        assert result.code == 2 and "Traceback" not in result.err and str(tmp_path) in result.err


def test_workdir_whose_checkpoints_are_no_folder_is_refused(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(UserError, match=f"{tmp_path} cannot be used: File exists: {tmp_path}/checkpoints"):
        trial.try_checkpoint(tmp_path)
    assert (tmp_path / "checkpoints").read_text() == "mine"


def test_workdir_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run cannot be used: Not a directory"):
        trial.try_checkpoint(tmp_path / "file/run")


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
