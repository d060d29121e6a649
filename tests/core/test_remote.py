"""Errors of remote stores: which of them are tried again, and for how long."""

import fsspec
import pytest

from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote import NoBucket, Refused, Store, persistent


class OfLibrary(Exception):
    """As of botocore and aiohttp."""

    def __init__(self, code=500):
        super().__init__(f"status {code}")
        self.code = code


class NoCredentialsError(Exception):
    """As of botocore."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock on which nothing but waiting takes time."""
    now = [0.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def failing(error, times=10**9):
    """An action that fails, and the errors that it raised so far."""
    raised = []

    def action():
        if len(raised) < times:
            raised.append(error)
            raise error
        return "done"

    return action, raised


@pytest.mark.parametrize("error", [
    OSError(5, "no route"), TimeoutError("slow"), ConnectionResetError(), EOFError(), OfLibrary(), OfLibrary(503)])
def test_errors_of_a_store_are_tried_again_for_a_quarter_of_an_hour(error, clock):
    action, raised = failing(error, 100)
    assert persistent("s3://b", action) == "done" and len(raised) == 100
    action, _ = failing(error)
    with pytest.raises(Refused):
        persistent("s3://b", action)
    assert clock[0] >= 100 * remote.PAUSE + remote.PATIENCE - remote.PAUSE


@pytest.mark.parametrize("error, reason", [
    (PermissionError(13, "Access Denied"), "Access Denied"),
    (OSError("Forbidden: b/x/o\nrun@p has no storage.objects.create access"), "Forbidden: b/x/o run@p has no storage"),
    (OfLibrary(401), "OfLibrary: status 401"), (OfLibrary(403), "OfLibrary: status 403"),
    (NoCredentialsError("Unable to locate credentials"), "Unable to locate"),
    (NoBucket("there is no bucket 'b'"), "there is no bucket 'b'"),
])
def test_denied_access_is_reported_after_a_few_attempts(error, reason, clock, caplog):
    action, raised = failing(error)
    with pytest.raises(Refused, match=reason):
        persistent("s3://b", action)
    assert 3 <= len(raised) <= 7 and clock[0] <= 30 and reason in caplog.text and "for at most 30 s" in caplog.text
    action, _ = failing(error, 2)  # credentials that are renewed
    assert persistent("s3://b", action) == "done"


@pytest.mark.parametrize("error", [
    TypeError("a bug"), KeyError("a bug"), ValueError("a bug"), ZeroDivisionError(), RuntimeError("a bug"),
    UserError("refused"), RunFault("lost"), FileNotFoundError(2, "no such file")])
def test_other_errors_are_not_tried_again(error, caplog):
    action, raised = failing(error)
    with pytest.raises(type(error)):
        persistent("s3://b", action)
    assert len(raised) == 1 and not caplog.text


def test_file_is_created_once():
    store = Store("memory://created/here", "a", "b")
    store.remove("")
    store.create("folder/x", b"one")
    with pytest.raises(FileExistsError):
        store.create("folder/x", b"two")
    assert store.read("folder/x") == b"one"


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(38, "a header is not implemented")])
def test_file_is_written_where_it_cannot_be_created_in_one_step(monkeypatch, error):
    store, write = Store("memory://created/here", "a", "b"), fsspec.filesystem("memory").pipe_file

    def pipe_file(self, path, content, mode="overwrite"):
        if mode == "create":
            raise error
        write(path, content)

    monkeypatch.setattr(type(store._system), "pipe_file", pipe_file)
    store.create("x", b"one")
    assert store.read("x") == b"one"


def test_missing_directories_are_made_but_no_bucket(tmp_path, monkeypatch):
    store = Store(f"file://{tmp_path}/new", "a", "b")
    store.write("folder/x", b"content")
    assert store.read("folder/x") == b"content"
    monkeypatch.setattr(type(store._system), "protocol", ("s3", "s3a"))
    with pytest.raises(NoBucket, match=f"file://{tmp_path}/new cannot be written: there is no bucket"):
        store.write("other/x", b"content")
    assert not (tmp_path / "new/other").exists()
    with pytest.raises(FileNotFoundError):
        store.upload(tmp_path / "none", "other/x")


@pytest.mark.parametrize("name", ["../up", "/etc/cron.d/x", "a/../../up", "./a", "a//b", "..", "a\\b"])
def test_objects_that_would_be_written_elsewhere_are_refused(tmp_path, monkeypatch, name):
    """An object of a bucket may have any name; a local folder of the same files may not."""
    store = Store("memory://inside/run", "a", "b")
    monkeypatch.setattr(store._system, "find", lambda top, **_: {f"/inside/run/{name}": {"size": 1, "name": name}})
    for reading in (store.names, store.details, lambda: store.download(name, tmp_path / "folder" / name)):
        with pytest.raises(UserError, match="memory://inside/run has a file named"):
            reading()
    assert not list(tmp_path.iterdir())
