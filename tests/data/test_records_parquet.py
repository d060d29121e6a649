"""Labelled examples in Parquet, as the data sets of the Hugging Face Hub have them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmrep.core.errors import UserError
from lmrep.data.records import Config, fingerprint, read

NAMES = {"names": ["neg", "pos"], "_type": "ClassLabel"}
STRING, INTEGER = ({"dtype": dtype, "_type": "Value"} for dtype in ("string", "int32"))


def write(path, columns, features=None, types=None, **settings):
    """Writes columns, with the metadata of the Hub if `features` are given."""
    table = pa.table({name: pa.array(column, (types or {}).get(name)) for name, column in columns.items()})
    if features:
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    pq.write_table(table, path, **settings)
    return str(path)


def fields(path, split="train", needed=(), **settings):
    return [record.fields for record in read(Config(**{split: path}, **settings), split, needed)]


def test_classes_have_the_names_of_the_metadata(tmp_path):
    columns = {"text": ["good", "bad"], "label": [1, 0]}
    path = write(tmp_path / "a.parquet", columns, {"text": STRING, "label": NAMES})
    assert fields(path) == [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}]
    plain = write(tmp_path / "plain.parquet", columns)
    assert [one["label"] for one in fields(plain)] == ["1", "0"]
    assert [one["label"] for one in fields(plain, label_map={"1": "pos", "0": "neg"})] == ["pos", "neg"]
    found = read(Config(train=path), "train", ["text", "label"])
    assert [(record.id, record.where) for record in found] == [("0", f"{path}, row 1"), ("1", f"{path}, row 2")]
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text('{"text": "good", "label": "pos"}\n{"text": "bad", "label": "neg"}\n')
    assert fingerprint(found) == fingerprint(read(Config(train=str(jsonl)), "train"))


def test_a_test_set_may_lack_its_labels(tmp_path):
    path = write(tmp_path / "test.parquet", {"sentence": ["a", "b"], "label": [-1, -1], "idx": [5, 6]},
                 {"sentence": STRING, "label": NAMES, "idx": INTEGER})
    columns = {"text": "sentence", "id": "idx"}
    found = read(Config(test=path, columns=columns), "test", ["text", "label"])
    assert [(record.fields, record.id) for record in found] == [({"text": "a"}, "5"), ({"text": "b"}, "6")]
    with pytest.raises(UserError, match=r"test\.parquet, row 1 has no 'label'"):
        fields(path, needed=["label"], columns=columns)


@pytest.mark.parametrize("tags", [{"feature": NAMES, "_type": "Sequence"}, {"feature": NAMES, "_type": "List"},
                                  [NAMES]], ids=["Sequence", "List", "list"])
def test_lists_and_objects(tmp_path, tags):
    columns = {
        "tokens": [["Ann", "left"]], "tags": [[1, 0]], "score": [3.8], "of": [{"texts": ["a", "b"], "label": 1}],
        "answers": [{"text": ["Ann"], "answer_start": [0]}], "context": ["Ann left"], "image": [b"\xff\xd8"]}
    path = write(tmp_path / "a.parquet", columns, {"tags": tags, "of": {
        "texts": {"feature": STRING, "_type": "List"}, "label": NAMES}, "answers": {
            "feature": {"text": STRING, "answer_start": INTEGER}, "_type": "Sequence"}}, {"score": pa.float32()})
    assert fields(path, columns={"words": "tokens", "choices": "of.texts"}) == [
        {"words": ["Ann", "left"], "tags": ["pos", "neg"], "answers": [("Ann", 0)], "context": "Ann left",
         "choices": ["a", "b"]}]
    for column, label in (("of.label", "pos"), ("score", "3.8")):
        assert fields(path, columns={"label": column, "text": "context"})[0]["label"] == label
    nested = write(tmp_path / "b.parquet", {"text": ["a"], "spans": [{"tags": [1]}]}, {
        "spans": {"feature": {"tags": NAMES}, "_type": "Sequence"}})
    assert fields(nested, columns={"tags": "spans.tags"})[0]["tags"] == ["pos"]


@pytest.mark.parametrize("type_", [pa.large_string(), pa.binary(), pa.string_view(),
                                   pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_texts_of_every_type(tmp_path, type_):
    texts = pa.array(["caf\u00e9", "b", None], pa.string()).cast(type_)
    path = write(tmp_path / "a.parquet", {"text": texts, "label": [1, 2, 3]})
    assert fields(path, damaged_examples=1, needed=["text"]) == [
        {"text": "caf\u00e9", "label": "1"}, {"text": "b", "label": "2"}]


@pytest.mark.parametrize(("columns", "settings", "message"), [
    ({"sentence": ["a"], "label": [0]}, {"needed": ["text"]}, r"row 1 has no 'text'; it has the fields sentence, l"),
    ({"text": ["a"], "other": [0]}, {"columns": {"text": "txt"}}, r"no 'txt'.*text, other"),
    ({"text": ["a", None]}, {"needed": ["text"]}, r"row 2 has no 'text': it is null"),
    ({"text": [1]}, {"needed": ["text"]}, r"row 1: 'text' is 1; expected a string"),
    ({"text": pa.array(["a", b"caf\xe9"], pa.binary())}, {}, r"row 2 is not UTF-8 .*0xe9"),
    ({"text": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xe9"]).buffers())}, {}, "row 1 is not UTF-8"),
    ({"words": pa.array([["a", b"\xe9"]], pa.list_(pa.binary())).view(pa.list_(pa.string()))}, {},
     "row 1 is not UTF-8"),
    ({"text": pa.array([], pa.string())}, {}, "has no examples")])
def test_refusals(tmp_path, columns, settings, message):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(UserError, match=message):
        fields(path, **settings)


def test_a_damaged_or_compressed_file_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["a text"] * 99}, write_page_checksum=True)
    with open(path, "r+b") as file:
        file.seek(40)
        file.write(b"\0\1\2\3")
    with pytest.raises(UserError, match=r"a\.parquet is not an intact Parquet file .*copy it again"):
        fields(path)
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    with pytest.raises(UserError, match=r"b\.parquet\.gz is compressed.*unpack it"):
        fields(str(tmp_path / "b.parquet.gz"))


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary()])
def test_bytes_that_are_not_utf_8_are_replaced(tmp_path, caplog, type_):
    stored = pa.large_binary() if type_ == pa.large_string() else pa.binary()
    texts = pa.array([b"caf\xe9", "caf\u00e9".encode()], stored).view(type_)
    path = write(tmp_path / "a.parquet", {"text": texts, "words": [["a"], ["b"]]})
    assert fields(path, undecodable="replace") == [{"text": "caf\ufffd", "words": ["a"]},
                                                   {"text": "caf\u00e9", "words": ["b"]}]
    assert "replaced by U+FFFD in 1 examples" in caplog.text
