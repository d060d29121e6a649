"""Input files of every form: compressed, archives of one file, and what stands in place of data."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile

import fsspec
import pyarrow as pa
import pytest

from lmrep.core import input_files, text_files
from lmrep.core.errors import UserError
from lmrep.data.corpora import Config, open_corpus
from lmrep.interop import tensor_files

TEXT = "".join(f"né, line {i}\n" for i in range(20_000)).encode()  # several buffers
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 123456789\n"


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return sink.getvalue().to_pybytes()


def tar(*files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


ONE = [("d/._a.tsv", b"of macOS"), ("d/a.tsv", TEXT)]
READABLE = {
    "a.tsv": TEXT, "a.tsv.gz": gzip.compress(TEXT), "A.TSV.BZ2": bz2.compress(TEXT), "a.tsv.xz": lzma.compress(TEXT),
    "a.tsv.zst": zstd(TEXT), "b.zip": zipped(("d/", b""), *ONE), "b.tar": tar(*ONE),
    "b.tar.gz": gzip.compress(tar(*ONE)), "b.tgz": gzip.compress(tar(*ONE)),
    "b.txz": lzma.compress(tar(("a.tsv.gz", gzip.compress(TEXT)))),
}  # fmt: skip


@pytest.mark.parametrize("name", READABLE)
def test_content_is_read_locally_and_remotely(tmp_path, name):
    (tmp_path / name).write_bytes(READABLE[name])
    store = fsspec.filesystem("memory")
    store.pipe(f"/input/{name}", READABLE[name])
    for path in (tmp_path / name, f"memory://input/{name}"):
        with input_files.open_input(path) as file:
            assert file.read() == TEXT
            assert file.name.lower().endswith("a.tsv")
        assert input_files.content_name(path).lower().endswith("a.tsv")
        with input_files.open_bytes(path) as file:
            assert file.read() == READABLE[name]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_several_streams_in_one_file_and_other_names_are_read(tmp_path, compress):
    path = tmp_path / "no_suffix"
    path.write_bytes(compress(TEXT[:9]) + compress(TEXT[9:]))
    with input_files.open_input(path) as file:
        assert file.read() == TEXT
    damaged = bytearray(compress(TEXT))
    damaged[len(damaged) // 2] ^= 1
    for content in (compress(TEXT)[:-9], *[bytes(damaged)] * (compress is not zstd)):  # pyarrow adds no checksum
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"no_suffix .*not an intact"), input_files.open_input(path) as file:
            file.read()


def nested(times):
    content = b"x"
    for _ in range(times):
        content = gzip.compress(content)
    return content


# Named by the file: content has the time at which it was compressed, which differs between workers.
@pytest.mark.parametrize("name, content, message", [pytest.param(*row, id=row[0]) for row in [
    ("two.zip", zipped(("a.txt", b"1"), ("b.txt", b"2")), r"holds a\.txt, b\.txt; .*unpack it"),
    ("two.tar.gz", gzip.compress(tar(("a.txt", TEXT), ("b.txt", b"2"))), r"holds a\.txt, b\.txt; .*unpack it"),
    ("many.tar", tar(*((f"{i}.txt", b"") for i in range(9))), r"holds 0\.txt, .*4\.txt, \.\.\.; .*unpack it"),
    ("none.zip", zipped(), "holds no file"), ("hidden.tar", tar((".DS_Store", b"")), "holds no file"),
    ("lfs.txt", LFS, "Git LFS pointer of a file of 123 MB.*git lfs pull"),
    ("annex.txt", b"/annex/objects/SHA256E-s12--0f.txt\n", r"git annex get annex\.txt"),
    ("page.csv", b"\n<!DOCTYPE html>\n<html>", "HTML page"), ("a.rar", b"Rar!\x1a\x07\x00", "RAR archive"),
    ("plain.gz", b"plain", r"not an intact gzip file \(its first bytes"), ("plain.tgz", gzip.compress(b"plain"), "tar"),
    ("cut.zip", READABLE["b.zip"][:-9], "not an intact zip file"), ("cut.tar", READABLE["b.tar"][:3000], "middle"),
    ("nested.gz", nested(5), "more than 4 times"), ("zip.gz", gzip.compress(READABLE["b.zip"]), "unpack it"),
]])  # fmt: skip
def test_other_content_is_refused_with_what_to_do(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} .*{message}"), input_files.open_input(tmp_path / name) as file:
        file.read()


def test_files_that_are_not_regular_or_not_there_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(".git/annex/objects/a/b")
    (tmp_path / "page.html").write_text("<html>")
    for name, message in (("pipe", "is a named pipe"), ("link", "a link to .*git annex get link"), ("", "is a folder"),
                          ("missing", "No such file"), ("a\0", "null byte"), ("/dev/zero", "is a device"),
                          ("/proc/version", "of unknown size")):
        with pytest.raises(UserError, match=message):
            input_files.open_input(tmp_path / name)
    with input_files.open_input(tmp_path / "page.html") as file:
        assert file.read() == b"<html>"


def test_what_expands_far_more_than_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "ALWAYS_ALLOWED", 2**20)
    for name, content in (("a.gz", gzip.compress(bytes(2**22))), ("a.xz", lzma.compress(bytes(2**22))),
                          ("a.zip", zipped(("a", bytes(2**22))))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="expands to more than 400 times"), \
                input_files.open_input(tmp_path / name) as file:
            while file.read(2**16):
                pass
    (tmp_path / "line").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="line 1 is longer than 50 B"), open(tmp_path / "line", "rb") as file:
        list(input_files.lines(file, "line", 50))


def test_lines_of_text_end_at_line_feeds_alone(tmp_path):
    text = "a\x0bb\x0c\x1c\x1d\x1e\x85\u2028\u2029c\rd"
    (tmp_path / "a.txt").write_bytes(f"\ufeff{text}\r\n\ufefflast".encode())
    assert list(text_files.lines(tmp_path / "a.txt")) == [text, "\ufefflast"]
    for content, message in ((b"a\n\xe9", "line 2 has the byte 0xe9"), ("a".encode("utf-16"), "iconv -f UTF-16"),
                             ("a".encode("utf-32"), "iconv -f UTF-32")):
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(UserError, match=message):
            list(text_files.lines(tmp_path / "a.txt"))
        with pytest.raises(UserError, match="UTF"):
            list(open_corpus(Config(corpus="text_files", files=str(tmp_path / "a.txt"))).documents())


def test_pipes_are_read_where_they_may_be(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    assert len(list(text_files.lines(tmp_path / "pipe", pipes=True))) == 20_000
    writer.join()


def test_pointers_in_place_of_a_checkpoint_are_named(tmp_path):
    for name, content, message in (("model.safetensors", LFS, "git lfs pull"), ("b.safetensors", zipped(*ONE), "zip")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            tensor_files.read(tmp_path / name)
    (tmp_path / "config.json").write_bytes(LFS)
    with pytest.raises(UserError, match="git lfs pull"):
        tensor_files.read_json(tmp_path / "config.json")
