"""What object stores do, of which emulators take the part."""

import uuid

import pytest

from lmrep.core.errors import UserError
from lmrep.storage import lease, remote_workdir
from lmrep.storage.lease import Lease
from tests.storage import emulators

pytestmark = pytest.mark.slow  # test_lease.py has a cheap store


@pytest.fixture(params=[emulators.S3, emulators.GoogleCloudStorage], ids=["s3", "gs"])
def kind(request, tmp_path, monkeypatch):
    """An emulator that runs."""
    emulator = emulators.started(request.param, tmp_path / "emulator")
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "here"))
    monkeypatch.setattr(lease, "SETTLE", 0.0)
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    yield request.param
    emulator.stop()


def test_bucket_that_does_not_exist_is_refused_and_not_created(kind):
    url = kind.url.replace("//bucket", f"//mistyped-{uuid.uuid4().hex}")
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be written: there is no bucket 'mistyped-"), \
                remote_workdir.training(url):
            pass
    store = remote_workdir.open_store(url)
    assert not store._system.exists(url.rpartition("/")[0])


@pytest.mark.parametrize("end", [b"", b"\r", b"\n", b"\r\n"])
def test_files_come_back_as_they_were_written(kind, end):
    store = remote_workdir.open_store(f"{kind.url}/{uuid.uuid4().hex}")
    store.write("file", bytes(range(256)) + end)
    assert store.read("file") == bytes(range(256)) + end


def test_lease_is_created_once(kind):
    store = remote_workdir.open_store(f"{kind.url}/{uuid.uuid4().hex}")
    store.create(lease.LEASE, b'{"id": "theirs"}')
    if kind is emulators.S3:  # the emulator of Google Cloud Storage ignores ifGenerationMatch
        with pytest.raises(FileExistsError):
            store.create(lease.LEASE, b'{"id": "ours"}')
        assert lease.read(store) == {"id": "theirs"}
    store.remove(lease.LEASE)
    first, second = Lease(store), Lease(store)
    assert first.take() == lease.read(store)["id"]
    with pytest.raises(UserError, match="in use by"):
        second.take()
    first.release()
    assert store.names() == []


def test_exclusive_creation_is_requested(kind, monkeypatch):
    """Of the store, whether or not the emulator honours it."""
    store = remote_workdir.open_store(f"{kind.url}/{uuid.uuid4().hex}")
    name, requests = ("_call_s3" if kind is emulators.S3 else "_call"), []
    call = getattr(type(store._system), name)

    async def record(self, *arguments, **options):
        requests.append(options)
        return await call(self, *arguments, **options)

    monkeypatch.setattr(type(store._system), name, record)
    store.create(lease.LEASE, b"{}")
    condition = ("IfNoneMatch", "*") if kind is emulators.S3 else ("ifGenerationMatch", "0")
    assert [options for options in requests if condition in options.items()]
