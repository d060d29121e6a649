"""Files of the Hugging Face Hub, by a server that stands for it."""

import io
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_collections import ConfigDict

from lmrep.core import hub as downloads
from lmrep.core import remote_cache
from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.data.corpora import files as corpus_files
from lmrep.data.records import reading
from lmrep.storage import remote_workdir

BOOKS = {"data/a-0.jsonl": '{"text": "one"}\n', "data/a-1.jsonl": '{"text": "two"}\n', "data/deep/b.jsonl": "{}\n",
         "README.md": "books"}
MODEL = {"config.json": "{}", "model.safetensors": "weights", "vocab.txt": "[PAD]\n", "onnx/model.onnx": "onnx",
         "onnx/config.json": "{}", "pytorch_model.bin": "pickled", "flax_model.msgpack": "flax"}


def rows_in_parquet(texts, labels):
    """The bytes of a Parquet file as the Hub has them: classes are numbers, with names in the metadata."""
    features = {"sentence": {"dtype": "string", "_type": "Value"},
                "label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    table = pa.table({"sentence": texts, "label": labels}).replace_schema_metadata(
        {b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    pq.write_table(table, file := io.BytesIO())
    return file.getvalue()


def names(pattern):
    return sorted(path.name for path in Path(pattern).parent.glob(Path(pattern).name))


def gets(hub):
    return sorted(request.rpartition("/")[2] for request in hub.requests if request.startswith("GET") and "resolve" in
                  request)


def test_matching_files_are_downloaded_once(hub):
    commit = hub.commit("me/books", BOOKS, "datasets")
    local = downloads.local("hf://datasets/me/books/data/a-*.jsonl", "data.files")
    assert commit in local and names(local) == ["a-0.jsonl", "a-1.jsonl"] and gets(hub) == ["a-0.jsonl", "a-1.jsonl"]
    assert downloads.local("hf://datasets/me/books@main/data/a-*.jsonl", "data.files") == local
    assert downloads.local(f"hf://datasets/me/books@{commit}/data/a-*.jsonl", "data.files") == local
    assert len(gets(hub)) == 2
    found = corpus_files.find("hf://datasets/me/books/data/**/*.jsonl", "jsonl", "*.jsonl")
    assert [source.name for source in found] == ["a-0.jsonl", "a-1.jsonl", "deep/b.jsonl"]
    assert Path(downloads.local("hf://datasets/me/books/data/deep", "data.files"), "b.jsonl").is_file()


def test_revisions_and_pins(hub):
    first = hub.commit("me/books", BOOKS, "datasets")
    hub.repositories["datasets", "me/books"]["refs"]["v1"] = first
    second = hub.commit("me/books", {"data/a-0.jsonl": "new"}, "datasets")
    address = "hf://datasets/me/books/data/a-0.jsonl"
    pinned = f"hf://datasets/me/books@{first}/data/a-0.jsonl"
    assert Path(downloads.local(address, "x")).read_text() == "new"
    assert Path(downloads.local(address.replace("books/", "books@v1/"), "x")).read_text() == BOOKS["data/a-0.jsonl"]
    assert downloads.pinned(address, "x") == pinned.replace(first, second)
    assert downloads.pinned(address.replace("books/", "books@v1/"), "x") == pinned == downloads.pinned(pinned, "x")
    assert downloads.pinned(address, "x", [pinned]) == pinned
    hub.commit("me/model", MODEL)
    config = {"data": {"files": f"{address},local.txt"}, "init": "hf://me/model@main", "rates": (1, 2.0), "none": None}
    assert downloads.pin(ConfigDict(config), [pinned]) == {**config, "data": {"files": f"{pinned},local.txt"},
                                               "init": downloads.pinned("hf://me/model", "x")}


def test_pins_of_a_run(tmp_path):
    commit = "0123456789" * 4
    (tmp_path / "config.json").write_text(f'{{"init": "hf://me/model@{commit}", "other": "hf://me/model@main"}}')
    assert downloads.recorded(tmp_path) == [f"hf://me/model@{commit}"]
    assert downloads.recorded(tmp_path / "none") == [] == downloads.recorded(None)


@pytest.mark.parametrize("stop", [True, False], ids=["unreachable", "offline"])
def test_cache_serves_without_the_hub(hub, monkeypatch, stop):
    from huggingface_hub import constants

    hub.commit("me/books", BOOKS, "datasets")
    address = "hf://datasets/me/books/data/a-*.jsonl"
    local, pinned = downloads.local(address, "data.files"), downloads.pinned(address, "data.files")
    if stop:
        hub.stop()
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert downloads.local(address, "data.files") == local and downloads.pinned(address, "data.files") == pinned
    with pytest.raises(UserError, match=r"data.files: the Hub cannot be reached.*me/other"):
        downloads.local("hf://datasets/me/other/x.txt", "data.files")
    with pytest.raises(UserError, match=r"the cache lacks files of the data set me/books"):
        downloads.local("hf://datasets/me/books/data/deep/*.jsonl", "data.files")


def test_model_is_a_published_directory(hub):
    commit = hub.commit("me/model", MODEL)
    directory = remote_workdir.local_copy("hf://me/model")
    assert commit in str(directory) and remote_cache.local("hf://me/model@main", "tokenizer.vocab_file") == directory
    assert {path.name for path in directory.iterdir()} == {"config.json", "model.safetensors", "vocab.txt"}
    assert remote_cache.local("hf://me/model/vocab.txt", "tokenizer.vocab_file").read_text() == "[PAD]\n"
    hub.commit("me/model", {f"small/{name}": content for name, content in MODEL.items()})
    assert downloads.origin(directory) == f"hf://me/model@{commit}" and downloads.origin(Path("/a")) == "/a"
    small = remote_workdir.local_copy("hf://me/model/small")
    assert small.name == "small" and (small / "model.safetensors").is_file() and not (small / "onnx").exists()


def test_labelled_rows(hub):
    hub.commit("me/rows", {"train.tsv": "text\tlabel\ngood\tpos\n", "dev.jsonl": '{"text": "bad", "label": "neg"}\n',
                           "test.csv": "text,label\nfine,pos\n"}, "datasets")
    config = records.Config(train="hf://datasets/me/rows/train.tsv", validation="hf://datasets/me/rows@main/d*.jsonl",
                            test="hf://datasets/me/rows/test.csv")
    rows = {split: reading.read(config, split, ["text", "label"]) for split in ("train", "validation", "test")}
    assert {split: [record.fields["text"] for record in rows[split]] for split in rows} == {
        "train": ["good"], "validation": ["bad"], "test": ["fine"]}


def test_labelled_rows_in_parquet(hub):
    files = {f"data/train-0000{i}-of-00002.parquet": rows_in_parquet([text], [i])
             for i, text in enumerate(["bad", "good"])}
    hub.commit("me/rows", files | {"data/test-00000-of-00001.parquet": rows_in_parquet(["fine"], [-1])}, "datasets")
    config = records.Config(train="hf://datasets/me/rows/data/train-*.parquet", columns={"text": "sentence"},
                            test="hf://datasets/me/rows@main/data/test-*.parquet")
    assert [record.fields for record in reading.read(config, "train", ["text", "label"])] == [
        {"text": "bad", "label": "neg"}, {"text": "good", "label": "pos"}]
    assert [record.fields for record in reading.read(config, "test", ["text", "label"])] == [{"text": "fine"}]


def test_file_beside_another_is_downloaded(hub):
    hub.commit("me/pairs", {"train.de": "eins\nzwei\n", "train.en": "one\ntwo\n", "test.de": "drei\n"}, "datasets")
    config = records.Config(train="hf://datasets/me/pairs/train.de", test="hf://datasets/me/pairs/test.de",
                            format="parallel", columns={"text": "de", "target": "en"})
    assert [record.fields for record in reading.read(config, "train", ["text", "target"])] == [
        {"text": "eins", "target": "one"}, {"text": "zwei", "target": "two"}]
    assert [record.fields for record in reading.read(config, "test", ["text", "target"])] == [{"text": "drei"}]


@pytest.mark.parametrize(("address", "message"), [
    ("hf://datasets/me/none/x.txt", "no data set me/none"),
    ("hf://me/none", r"no model me/none.*hf://datasets/"),
    ("hf://datasets/me/books@v2/x.txt", "no revision 'v2'"),
    ("hf://datasets/me/books/data/c*.jsonl", r"no such file at commit.*data/a-0.jsonl"),
    ("hf://datasets/me/books", "a whole repository"),
    ("hf://books", "expected hf://OWNER/NAME"),
    ("hf://spaces/me/books/x", "a space"),
    ("hf://me/pickled", r"only pickled weights \(pytorch_model.bin\).*model.safetensors"),
])
def test_refusals(hub, address, message):
    hub.commit("me/books", BOOKS, "datasets")
    hub.commit("me/pickled", {"config.json": "{}", "pytorch_model.bin": "pickled"})
    with pytest.raises(UserError, match=message):
        downloads.local(address, "init")


def test_private_repository_needs_a_token(hub, monkeypatch):
    hub.commit("me/books", BOOKS, "datasets")
    hub.repositories["datasets", "me/books"]["private"] = True
    address = "hf://datasets/me/books/README.md"
    assert os.path.isfile(downloads.local(address, "data.files"))
    monkeypatch.setenv("HF_TOKEN", "")
    hub.commit("me/books", {"README.md": "new"}, "datasets")
    with pytest.raises(UserError, match=r"if it is private, log in: hf auth login, or \$HF_TOKEN"):
        downloads.local(address, "data.files")


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[hub\]'"):
        downloads.local("hf://me/model", "init")
    with pytest.raises(UserError, match=r"pip install -e '\.\[hub\]'"):
        downloads.upload(Path("."), "me/model", False, "message")


def test_upload(hub, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n")
    (folder / "model.safetensors").write_bytes(b"x" * 20_000)
    address = downloads.upload(folder, "me/new", True, "Upload it")
    assert address.startswith(hub.url) and hub.repositories["models", "me/new"]["private"]
    assert {name: len(content) for name, content in hub.files("me/new").items() if name != ".gitattributes"} == {
        "README.md": 35, "model.safetensors": 20_000}
    assert any(request.startswith("PUT /lfs/") for request in hub.requests)
    downloads.upload(folder, "me/new", True, "Upload it again")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"refuses the upload to me/new: log in with a token"):
        downloads.upload(folder, "me/new", False, "message")
