"""JSONL and Parquet: a document a record."""

import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmrep.core.errors import UserError
from lmrep.data.corpora import Config, cleaning, open_corpus, records

TEXTS = ["é one\ntwo", "three", "  ", "four"]


def read(path, type_="jsonl", **settings):
    """The documents, and the tally."""
    tally = Counter()
    return list(open_corpus(Config(corpus=type_, files=str(path), **settings)).documents(tally)), dict(tally)


def lines(path, *values):
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values))
    return path


def table(path, column, name="text", **settings):
    pq.write_table(pa.table({name: column, "id": range(len(column))}), path, **settings)
    return path


@pytest.mark.parametrize("suffix, compression", [("", None), (".gz", "gzip"), (".zst", "zstd")])
def test_jsonl_is_read_plain_and_compressed(tmp_path, suffix, compression):
    content = "\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) for text in TEXTS) + "\n\n"
    with pa.output_stream(str(tmp_path / f"a.jsonl{suffix}"), compression=compression) as file:
        file.write(content.encode("utf-8-sig"))
    assert read(tmp_path / "*.jsonl*") == (["é one\ntwo", "three", "four"], {
        "files": 1, "documents": 3, "empty_documents": 1, "blank_lines": 1, "byte_order_marks": 1})


def test_jsonl_fields_are_cleaned_and_may_be_nested(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"a": {"b": " \ufeff"[1:] + "x\r\ny\rz\u0000 "}}, {"a": {"b": "\r\n"}})
    assert read(path, text_field="a.b") == (["x\ny\nz"], {
        "files": 1, "documents": 1, "empty_documents": 1, "byte_order_marks": 1, "carriage_returns": 3,
        "nul_characters": 1})


@pytest.mark.parametrize("line", ["{no", {"txt": "x", "id": 1}, {"text": None}])
def test_damaged_lines_are_skipped_within_a_budget(tmp_path, line):
    path = lines(tmp_path / "a.jsonl", {"text": "one"}, line, {"text": "two"})
    assert read(path, damaged_lines=1) == (["one", "two"], {"files": 1, "documents": 2, "damaged_lines": 1})
    lines(tmp_path / "b.jsonl", line)
    with pytest.raises(UserError, match=r"b\.jsonl, line 1 .*damaged_lines"):
        read(tmp_path / "*.jsonl", damaged_lines=1)


def test_jsonl_that_is_not_utf8_is_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n{"text": "half \\ud83d"}\n')
    assert read(path, undecodable="replace") == (["ok", "caf\ufffd", "half \ufffd"], {
        "files": 1, "documents": 3, "replaced_characters": 2})


def test_jsonl_lines_do_not_depend_on_block_boundaries(tmp_path, monkeypatch):
    texts = [f"{i} " + "x" * i for i in range(1, 60)]
    path = lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    for chunk in (1, 7, 100):
        monkeypatch.setattr(records, "CHUNK", chunk)
        assert read(path)[0] == texts
    monkeypatch.setattr(records, "MAX_LINE", 40)
    with pytest.raises(UserError, match=r"a\.jsonl, line \d+ is longer than"):
        read(path)


def test_long_records_are_split_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "MAX_CHARACTERS", 10)
    expected = (["short", "two words", "and more"], {"files": 1, "documents": 3, "cut_documents": 1})
    texts = ["short", "two words and more"]
    assert read(lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))) == expected
    assert read(table(tmp_path / "a.parquet", texts), "parquet") == expected


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(
    pa.int32(), pa.string())])
def test_parquet_of_every_text_type(tmp_path, monkeypatch, type_):
    monkeypatch.setattr(records, "CHUNK", 16)  # a row or two at once
    column = pa.array([*TEXTS, None, "five\r\n"], pa.string()).cast(type_)
    path = table(tmp_path / "a.parquet", column, row_group_size=4)
    assert read(path, "parquet") == (["é one\ntwo", "three", "four", "five"], {
        "files": 1, "documents": 4, "empty_documents": 2, "carriage_returns": 1})


def test_parquet_columns_may_be_nested(tmp_path):
    path = table(tmp_path / "a.parquet", [{"body": {"text": "one", "n": 1}}, None, {"body": {"text": "two", "n": 2}}],
                 "article")
    assert read(path, "parquet", text_field="article.body.text")[0] == ["one", "two"]


def test_parquet_text_that_is_not_utf8_is_replaced(tmp_path):
    path = table(tmp_path / "a.parquet", pa.array([b"ok", b"caf\xe9"], pa.binary()))
    assert read(path, "parquet", undecodable="replace")[1]["replaced_characters"] == 1


def test_errors_name_damaged_parquet_files(tmp_path):
    path = table(tmp_path / "a.parquet", [f"text {i} " * 20 for i in range(1000)], write_page_checksum=True)
    intact = path.read_bytes()
    names = [match.start() for match in re.finditer(rb"\x04text", intact)]  # in the schema and the column's metadata
    renamed = [intact[: at + 1] + name + intact[at + 5 :] for at in names[1:] for name in (b"tExt", b"t\xddxt")]
    for damaged in (intact[: len(intact) // 2], b"", b"no Parquet at all" * 9, *renamed,
                    intact[:200] + bytes([intact[200] ^ 255]) + intact[201:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"a\.parquet is not an intact Parquet file .*copy it again"):
            read(path, "parquet")


def test_fingerprints_of_records_depend_on_content_and_field(tmp_path):
    def fingerprint_of(folder, text, **settings):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = lines(tmp_path / folder / "a.jsonl", {"text": text, "other": text})
        return open_corpus(Config(corpus="jsonl", files=str(path), **settings)).fingerprint()

    first = fingerprint_of("x", "a")
    assert fingerprint_of("y", "a", undecodable="replace", damaged_lines=3) == first  # both change only the errors
    assert len({first, fingerprint_of("x", "b"), fingerprint_of("x", "a", text_field="other")}) == 3
