"""A lock that only its living holder has; files that are old or new, never torn; seals that a changed byte breaks."""

import json
import multiprocessing
import os
import signal
import socket

import pytest

from lmrep.core import files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import atomic_directory
from lmrep.storage import workdir
from tests import small

processes = multiprocessing.get_context("spawn")


def test_second_process_is_refused_and_the_holder_named(tmp_path):
    path = tmp_path / "new" / "run"
    with workdir.lock(path):
        with pytest.raises(UserError) as refused, workdir.lock(path):
            pass
        message = str(refused.value)
        assert f"process {os.getpid()} on {socket.gethostname()}, started 20" in message and str(path) in message
        with workdir.lock(tmp_path / "another"):
            pass
    with workdir.lock(path):
        pass


def test_workdir_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be used"), workdir.lock(tmp_path / "file"):
        pass


def hold_and_fork(path, connection):
    """Holds the lock, with a child that was forked meanwhile and lives until the connection ends."""
    signal.alarm(small.SECONDS)
    with workdir.lock(path):
        if os.fork() == 0:
            connection.send("forked")
            connection.recv()
            connection.send("still there")
            os._exit(0)
        signal.pause()


@pytest.mark.slow
def test_lock_of_a_killed_process_is_released_despite_live_children(tmp_path):
    ours, theirs = processes.Pipe()
    holder = processes.Process(target=hold_and_fork, args=(tmp_path, theirs))
    holder.start()
    assert ours.poll(small.SECONDS) and ours.recv() == "forked"
    with pytest.raises(UserError, match=f"process {holder.pid} "), workdir.lock(tmp_path):
        pass
    holder.kill()
    os.waitpid(holder.pid, 0)  # join waits until the child ends, too
    with workdir.lock(tmp_path):
        ours.send("go on")
        assert ours.poll(small.SECONDS) and ours.recv() == "still there"


def test_json_is_replaced_atomically(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    files.write_json(path, {"b": [1, 0.1], "a": "é"})
    files.write_json(path, {"b": [2, 0.1], "a": "é"})
    assert json.loads(path.read_text("utf8")) == {"b": [2, 0.1], "a": "é"}

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFault, match=r"config\.json cannot be written: No space left on device"):
        files.write_json(path, {})
    assert json.loads(path.read_text("utf8"))["b"] == [2, 0.1]
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def sealed(directory):
    (directory / "inner").mkdir(parents=True)
    (directory / "inner" / "data").write_bytes(b"abc")
    (directory / "empty").write_bytes(b"")
    files.seal(directory, {"step": 3, "rate": 0.1})
    return directory


def test_manifest_contains_the_record(tmp_path):
    directory = sealed(tmp_path / "x")
    record = files.verified(directory)
    assert (record["step"], record["rate"]) == (3, 0.1)
    # the examples of FIPS 180-4
    assert record["files"] == {
        "empty": [0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
        "inner/data": [3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"],
    }
    assert files.manifest(directory) == record


def test_any_flipped_bit_is_detected(tmp_path):
    directory = sealed(tmp_path / "x")
    for name in ("inner/data", "manifest.json"):
        content = (directory / name).read_bytes()
        for i in range(len(content)):
            changed = bytearray(content)
            changed[i] ^= 1 << i % 8
            (directory / name).write_bytes(changed)
            with pytest.raises(files.Damaged, match=name.replace(".", r"\.")):
                files.verified(directory)
        (directory / name).write_bytes(content)
    files.verified(directory)


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"sha256": 1}', "\x00" * 40])
def test_invalid_manifest_is_refused(tmp_path, text):
    directory = sealed(tmp_path / "x")
    (directory / "manifest.json").write_text(text)
    with pytest.raises(files.Damaged, match=r"manifest\.json"):
        files.verified(directory)


# Names and folders


def test_invalid_file_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        workdir.read_config(tmp_path / ("x" * 300))
    with pytest.raises(UserError, match="cannot be used: File name too long"), workdir.lock(tmp_path / ("x" * 300)):
        pass
    too_long = tmp_path / ("x" * 250)  # with a suffix
    with pytest.raises(RunFault, match="cannot be written: File name too long"), workdir.new_directory(too_long):
        pass
    assert list(tmp_path.iterdir()) == []


def test_directory_is_complete_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError), workdir.new_directory(tmp_path / "new") as temporary:
        (temporary / "file").write_text("")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with workdir.new_directory(tmp_path / "new") as temporary:
        (temporary / "file").write_text("")
        assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "file"]
    with pytest.raises(UserError, match="exists already"), workdir.new_directory(tmp_path / "new"):
        pass


def test_first_of_two_cached_directories_is_kept(tmp_path):
    def write(text, keep_existing):
        with atomic_directory(tmp_path / "cache", keep_existing) as temporary:
            (temporary / "file").write_text(text)

    write("first", True)
    write("second", True)
    with pytest.raises(OSError):
        write("third", False)
    assert (tmp_path / "cache/file").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_files_are_written_through_no_link(tmp_path, monkeypatch):
    """In a folder that others write to, there may be a link with the name of a temporary file, or of a lock."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(files, "temporary_name", lambda name: f".{name}.foreseen")
    (tmp_path / ".config.json.foreseen").symlink_to(victim)
    with pytest.raises(RunFault, match=r"config\.json cannot be written: File exists"):
        files.write_json(tmp_path / "config.json", {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(victim)
    for locked in (workdir.lock(tmp_path / "run"), workdir.exclusive(tmp_path / "run/.lock")):
        with pytest.raises(UserError, match=r"run.* cannot be (used|locked): "), locked:
            pass
    assert victim.read_text() == "precious" and (tmp_path / ".config.json.foreseen").is_symlink()


def test_lock_of_another_program_is_neither_emptied_nor_waited_for(tmp_path):
    with workdir.lock(tmp_path):
        content = (tmp_path / workdir.LOCK).read_text()
        refusal = f"has been locked by process {os.getpid()} on"
        with pytest.raises(UserError, match=refusal), workdir.exclusive(tmp_path / workdir.LOCK, patience=0.2):
            pass
        assert (tmp_path / workdir.LOCK).read_text() == content


def test_lock_file_of_another_program_is_kept(tmp_path):
    for content in ("1234\n", "process of something else", "\0" * 10):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(UserError, match=r"\.lock is not a lock of lmrep"), workdir.lock(tmp_path):
            pass
        assert (tmp_path / ".lock").read_text() == content
    (tmp_path / ".lock").write_text("")
    for _ in range(2):
        with workdir.lock(tmp_path):
            pass


def test_only_what_lmrep_left_is_removed_beside_a_new_directory(tmp_path):
    mine = (".new.2024", f".new.{2**22 + 1}", ".new.backup.2023")
    for name in mine:
        (tmp_path / name).mkdir()
    with workdir.new_directory(tmp_path / "new"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([*mine, "new"])


def test_changed_config_is_said(tmp_path, caplog):
    record = {"config": {"rate": 1e-05, "betas": (0.9, 0.98)}, "data": {"tokenizer": "é", "plans": []}}
    workdir.write_config(tmp_path, record)
    read = json.loads(json.dumps(record))
    assert workdir.read_config(tmp_path) == read and not caplog.records
    workdir.write_config(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert workdir.read_config(tmp_path) == read and not caplog.records
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("0.98", "0.99"))
    for _ in range(2):
        assert workdir.read_config(tmp_path)["config"]["betas"] == [0.9, 0.99]
    assert len(caplog.records) == 1 and f"{path} has changed since lmrep wrote it" in caplog.text
    files.write_json(path, record)  # of an earlier version
    caplog.clear()
    assert workdir.read_config(tmp_path) == read and not caplog.records
