"""What text files may hold besides text: each is met by one rule, and counted."""

import gzip
import random
import tracemalloc
from collections import Counter

import pyarrow as pa
import pytest

from lmrep.core.errors import UserError
from lmrep.data.corpora import Config, cleaning, open_corpus, text


def read(path, **settings):
    """The documents of text files, and the tally."""
    tally = Counter()
    return list(open_corpus(Config(corpus="text_files", files=str(path), **settings)).documents(tally)), dict(tally)


def test_characters_that_are_no_text_are_removed_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\0\0 four\n\n\n\0\n\nfive")
    assert read(tmp_path / "a.txt", documents="blank_line") == (["one\ntwo\nthree four", "five"], {
        "files": 1, "documents": 2, "byte_order_marks": 1, "carriage_returns": 2, "nul_characters": 3})
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf \n\0")
    assert read(tmp_path / "*.txt")[1] == {"files": 3, "documents": 1, "empty_files": 2, "byte_order_marks": 2,
                                           "carriage_returns": 2, "nul_characters": 4}
    (tmp_path / "lines.txt").write_text("a\n\n \nb\n")
    assert read(tmp_path / "lines.txt", documents="line") == (["a", "b"], {
        "files": 1, "documents": 2, "empty_documents": 2})


def test_plain_text_has_no_anomalies(tmp_path):
    (tmp_path / "a.txt").write_text("né\ufffd\n\nb\ufeff\n")
    assert read(tmp_path / "a.txt", undecodable="replace") == (["né\ufffd", "b\ufeff"], {"files": 1, "documents": 2})


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_that_are_not_utf8_are_refused_by_line_or_replaced(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(text, "CHUNK", 16)
    content = "é\nlong lines, ".encode() * 10 + b"\ncaf\xe9 \xff\xfe\nmore \xf0\x9f"
    path = tmp_path / f"latin.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(UserError, match=r"latin\.txt.*, line 12: byte 0xe9 is not UTF-8.*undecodable=replace"):
        read(path)
    documents, tally = read(path, undecodable="replace")
    assert documents == [content.decode("utf8", "replace")] and tally["replaced_characters"] == 4


ODDITIES = ["a", "é", "漢", "😀", " ", "\t", "\n", "\n", "\r\n", "\r", "\n \n", "\n\n", "\u00a0", "\u2028", "\x1c",
            "\0", "word", "\ufeff"]


@pytest.mark.parametrize("unit", ["file", "line", "blank_line"])
def test_block_boundaries_and_splits_lose_no_text(tmp_path, monkeypatch, unit):
    monkeypatch.setattr(cleaning, "MAX_CHARACTERS", 10)
    for seed in range(60):
        content = "".join(random.Random(seed).choices(ODDITIES, k=50))
        (tmp_path / "a.txt").write_text("x" + content, newline="")
        results = []
        for chunk in (1, 2, 5, 13, 2**18):
            monkeypatch.setattr(text, "CHUNK", chunk)
            results.append(read(tmp_path / "a.txt", documents=unit))
        assert all(one == results[0] for one in results)
        documents = results[0][0]
        assert all(one == one.strip() and 0 < len(one) <= 10 for one in documents)
        assert "".join("".join(documents).split()) == "x" + "".join(content.replace("\0", "").split())


def test_long_documents_are_split_at_line_breaks_or_spaces(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "MAX_CHARACTERS", 10)
    (tmp_path / "a.txt").write_text("one a b\ntwo words and longwordsindeed")
    assert read(tmp_path / "a.txt", documents="file") == (["one a b", "two words", "and longwo", "rdsindeed"], {
        "files": 1, "documents": 4, "cut_documents": 3})


@pytest.mark.slow
def test_a_line_of_50_mb_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "line.txt"
    with path.open("wb") as file:
        for _ in range(50):
            file.write(b"some words " * 90_909)
    tracemalloc.start()
    try:
        sizes = [len(one) for one in open_corpus(Config(corpus="text_files", files=str(path))).documents()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(sizes) <= cleaning.MAX_CHARACTERS and 49.99e6 < sum(sizes) < 50e6
    assert peak < 4.5 * cleaning.MAX_CHARACTERS  # a document, its copy while it is cut, and a block


def test_compressed_files_hold_the_same_documents(tmp_path):
    content = "né\r\nw\n\nx".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content[:4]) + gzip.compress(content[4:]))
    with pa.CompressedOutputStream(str(tmp_path / "a.txt.zst"), "zstd") as file:
        file.write(content)
    for suffix in ("", ".gz", ".zst"):
        assert read(tmp_path / f"a.txt{suffix}")[0] == ["né\nw", "x"]
    (tmp_path / "empty.gz").write_bytes(b"")
    assert read(tmp_path / "*")[1]["empty_files"] == 1


@pytest.mark.parametrize("suffix, compression", [("gz", "gzip"), ("zst", "zstd")])
def test_errors_name_damaged_compressed_files(tmp_path, suffix, compression):
    path = tmp_path / f"a.txt.{suffix}"
    with pa.CompressedOutputStream(str(path), compression) as file:
        file.write(random.Random(0).randbytes(10_000).hex().encode())
    intact = path.read_bytes()
    path.write_bytes(intact[:-20])
    with pytest.raises(UserError, match=rf"a\.txt\.{suffix} ends in the middle of its {compression} stream.*copy it"):
        read(path)
    path.write_bytes(b"not compressed at all\n" * 10)
    with pytest.raises(UserError, match=rf"a\.txt\.{suffix} is not an intact {compression} file .*copy it"):
        read(path)
