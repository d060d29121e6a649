"""Local copies of remote files, by fsspec's store in memory."""

import base64
import hashlib

import fsspec
import pytest

from lmrep.core import remote, remote_cache
from lmrep.core.errors import RunFault, UserError

URL = "memory://models/bert"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The store with two files in a directory and one below it."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    system = fsspec.filesystem("memory")
    for name in system.find("/"):
        system.rm_file(name)
    for name in ("config.json", "vocab.txt", "onnx/model.onnx"):
        system.pipe_file(f"/models/bert/{name}", name.encode())
    return system


def downloads(monkeypatch) -> list:
    """The files that are downloaded from now on."""
    found, download = [], remote.Store.download
    monkeypatch.setattr(remote.Store, "download", lambda self, name, path: (found.append(name),
                                                                            download(self, name, path)))
    return found


def checksums(monkeypatch, **known: bytes) -> None:
    """Lets the store say that files have the MD5 of these contents."""
    details = remote.Store.details
    monkeypatch.setattr(remote.Store, "details", lambda self: {
        name: (size, f"md5Hash {base64.b64encode(hashlib.md5(known[name.partition('.')[0]]).digest()).decode()}")
        for name, (size, _) in details(self).items()})


def test_directory_is_downloaded_once(store, monkeypatch, tmp_path):
    fetched = downloads(monkeypatch)
    path = remote_cache.local(URL, "init")
    assert path.name == "bert" and path.is_relative_to(tmp_path / "machine/downloads")
    assert {file.name: file.read_text() for file in path.iterdir()} == {
        "config.json": "config.json", "vocab.txt": "vocab.txt"}
    assert remote_cache.local(f"{URL}/", "init") == path and sorted(fetched) == ["config.json", "vocab.txt"]
    store.pipe_file("/models/bert/vocab.txt", b"another")
    other = remote_cache.local(URL, "init")
    assert other != path and (other / "vocab.txt").read_text() == "another"


def test_file_is_downloaded(tmp_path):
    path = remote_cache.local(f"{URL}/vocab.txt", "tokenizer.vocab_file")
    assert path.name == "vocab.txt" and path.read_text() == "vocab.txt"
    assert remote_cache.local(tmp_path, "init") == tmp_path


def test_files_are_compared_with_the_checksums_of_the_store(monkeypatch):
    with monkeypatch.context() as patch:
        checksums(patch, config=b"config.json", vocab=b"another")
        with pytest.raises(RunFault, match=rf"{URL}/vocab.txt arrived with the MD5 .* instead of .*; try again"):
            remote_cache.local(URL, "init")
    checksums(monkeypatch, config=b"config.json", vocab=b"vocab.txt")
    assert remote_cache.local(URL, "init").is_dir()


def test_truncated_download_is_refused_and_not_kept(monkeypatch):
    def cut(self, name, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"co")

    with monkeypatch.context() as patch:
        patch.setattr(remote.Store, "download", cut)
        with pytest.raises(RunFault, match=r"arrived with 2 bytes instead of"):
            remote_cache.local(URL, "init")
    assert (remote_cache.local(URL, "init") / "vocab.txt").read_text() == "vocab.txt"


def test_missing_directory_is_an_error():
    with pytest.raises(UserError, match=r"init is 'memory://models/none', where the store has no files"):
        remote_cache.local("memory://models/none", "init")


def test_damaged_copy_is_downloaded_again(caplog):
    path = remote_cache.local(URL, "init") / "vocab.txt"
    path.write_bytes(b"vocab.txu")
    assert remote_cache.local(URL, "init") / "vocab.txt" == path and path.read_bytes() == b"vocab.txt"
    assert "is damaged and will be built again: bert/vocab.txt has changed" in caplog.text
