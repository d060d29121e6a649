"""Files that are remote or cannot be read. The store in memory of fsspec stands for any other."""

import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmrep.core.errors import UserError
from lmrep.data.corpora import Config, files, open_corpus


def corpus(pattern, corpus_name="text_files", **settings):
    return open_corpus(Config(corpus=corpus_name, files=str(pattern), **settings))


@pytest.fixture
def store():
    """An empty store at memory://."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


def test_remote_files_are_read_like_local_ones(store, tmp_path):
    for name in ("b", "a", "c/d"):
        store.pipe(f"/bucket/{name}.txt", f"{name}\n\nmore".encode())
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(f"{name}\n\nmore")
    for pattern in ("*.txt", "**/*.txt", "a.txt"):
        remote, local = corpus(f"memory://bucket/{pattern}"), corpus(tmp_path / pattern)
        assert list(remote.documents()) == list(local.documents())
        assert remote.fingerprint() == local.fingerprint()


def test_remote_records_and_compressed_files_are_read(store):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    store.pipe("/bucket/a.parquet", sink.getvalue().to_pybytes())
    assert list(corpus("memory://bucket/*.parquet", "parquet").documents()) == ["one", "two"]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(b'{"text": "three"}\n')
    content = sink.getvalue().to_pybytes()
    store.pipe("/bucket/a.jsonl.zst", content)
    assert list(corpus("memory://bucket/*.zst", "jsonl").documents()) == ["three"]
    store.pipe("/bucket/a.jsonl.zst", content[:-3])
    with pytest.raises(UserError, match=r"memory://.*a\.jsonl\.zst ends in the middle"):
        list(corpus("memory://bucket/*.zst", "jsonl").documents())


def test_remote_fingerprints_take_the_checksum_of_the_store():
    def fingerprint_of(checksum, size):
        return files.fingerprint([files.CorpusFile("gs://b/a", "a", None, checksum, size)])  # there is nothing to read

    assert fingerprint_of("md5Hash x", 3) == fingerprint_of("md5Hash x", 3)
    assert len({fingerprint_of("md5Hash x", 3), fingerprint_of("md5Hash x", 4), fingerprint_of("md5Hash y", 3)}) == 3


def test_sizes_and_checksums_of_remote_files_are_kept(store, monkeypatch):
    store.pipe("/bucket/a.txt", b"one")
    listed = type(store).info
    monkeypatch.setattr(type(store), "info", lambda self, path, **kw: listed(self, path, **kw) | {"ETag": "abc"})
    [source] = files.find("memory://bucket/a.txt", "text_files", "*.txt")
    assert (source.path, source.name) == ("memory:///bucket/a.txt", "a.txt")
    assert (source.size, source.checksum) == (3, "ETag abc")


def test_errors_name_the_missing_package_of_a_protocol(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)  # what an import then finds: nothing
    with pytest.raises(UserError, match=r"az:// needs a package that is not installed .*pip install adlfs$"):
        corpus("az://bucket/*.txt")


def test_a_link_to_nothing_is_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "missing")
    assert list(corpus(tmp_path / "*.txt").documents()) == ["Text."]
