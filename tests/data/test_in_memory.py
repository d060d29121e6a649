"""Records and texts in memory are read as files are, and refused by split and number."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data import corpora, in_memory, records

EXAMPLES = [{"text": f"film {i}", "label": ("neg", "pos")[i % 2]} for i in range(6)]
NEEDED = ("text", "label")


class Frame:
    """A stand-in for a pandas data frame."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])
        self.iloc = self

    def __iter__(self):
        return iter(self.columns)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, rows):
        return Frame(self.rows[rows])

    def to_dict(self, orient):
        assert orient == "records"
        return self.rows


class Dataset(list):
    """A stand-in for a `datasets.Dataset` whose labels and tags are classes."""

    features = {  # noqa: RUF012
        "text": SimpleNamespace(dtype="string"), "label": SimpleNamespace(names=["neg", "pos"]),
        "tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B"]))}


def stored(tmp_path, data, **config):
    return in_memory.store_records(data, records.Config(**config), NEEDED, tmp_path)


def fields(config, split="train"):
    return [record.fields for record in records.read(config, split, NEEDED)]


@pytest.mark.parametrize("make", [list, iter, Frame, lambda rows: Dataset(
    {**row, "label": ["neg", "pos"].index(row["label"])} for row in rows)])
def test_all_forms_of_records_give_the_same_file(tmp_path, make):
    config = stored(tmp_path, {"train": make(EXAMPLES), "validation": None}, train="old.tsv", validation="old.tsv",
                    format="columns", tfds="glue/sst2")
    assert fields(config) == EXAMPLES
    assert config.train == stored(tmp_path, {"train": EXAMPLES}).train and not config.validation
    assert [path.name for path in (tmp_path / "records").rglob("*.jsonl")] == ["train.jsonl"]


def test_values_of_numpy_and_pandas_become_plain(tmp_path):
    missing = type("NAType", (), {})()
    row = {"text": np.str_("a film"), "label": np.int64(3), "score": np.float32(0.5), "vector": np.arange(2),
           "gone": math.nan, "none": missing, 5: [np.int8(1)]}
    [line] = Path(stored(tmp_path, {"train": [row]}).train).read_text().splitlines()
    assert json.loads(line) == {"text": "a film", "label": 3, "score": 0.5, "vector": [0, 1], "gone": None,
                                "none": None, "5": [1]}


def test_columns_and_classes_are_mapped_as_those_of_files(tmp_path):
    rows = Dataset([{"sentence": "A film.", "label": 1, "tags": [0, 1]}])
    config = stored(tmp_path, {"train": rows, "test": Dataset([{"text": "x", "label": -1}])},
                    columns={"text": "sentence"}, test_columns={"text": "text"})
    assert fields(config) == [{"text": "A film.", "label": "pos", "tags": ["O", "B"]}]
    assert fields(config, "test") == [{"text": "x"}]


@pytest.mark.parametrize(("data", "message"), [
    (EXAMPLES, "data is of type list; expected a dict of splits"),
    ({"validation": EXAMPLES}, "no split 'train'"),
    ({"train": EXAMPLES, "dev": EXAMPLES}, "a split of data is 'dev'; expected one of test, train, validation"),
    ({"train": "train.tsv"}, r"data\['train'\] is of type str; .* as the field data.train"),
    ({"train": []}, "has no records; note that a generator gives its records once"),
    ({"train": EXAMPLES, "validation": ["A film."]}, r"data\['validation'\], record 0 \(from 0\) is of type str; "
                                                     "expected a dict with the fields text, label"),
    ({"train": [*EXAMPLES, {"sentence": "x", "label": "a"}]}, r"record 6 \(from 0\) has no 'text'; it has the fields "
                                                              "sentence, label: set config.data.columns"),
    ({"train": [*EXAMPLES, {"text": math.nan, "label": "a"}]}, "record 6 .* has no 'text': it is null; correct it"),
    ({"train": [*EXAMPLES, {"text": " ", "label": "a"}]}, "record 6 .*: the text is empty"),
    ({"train": [{**EXAMPLES[0], "made": object()}]}, "record 0 .*: 'made' is .*, of type object; expected texts"),
    ({"train": [{**EXAMPLES[0], "made": [math.inf]}]}, "record 0 .*: 'made' is .*, of type list; expected texts"),
])
def test_unusable_records_are_refused_by_split_and_number(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        stored(tmp_path, data)
    assert not [*tmp_path.rglob(".*")]  # no temporary file stays


def test_damaged_examples_are_left_out_as_those_of_files(tmp_path, caplog):
    config = stored(tmp_path, {"train": [*EXAMPLES, {"text": None, "label": "pos"}]}, damaged_examples=1)
    assert fields(config) == EXAMPLES and "left out 1 examples" in caplog.text


@pytest.mark.parametrize("texts", [["one", "two"], iter(["one", "two"]), Frame([{"body": "one"}, {"body": "two"}])])
def test_texts_become_documents(tmp_path, texts):
    config = in_memory.store_texts({"train": texts}, corpora.Config(text_field="body"), tmp_path)
    assert [*corpora.open_corpus(config).documents()] == ["one", "two"]


@pytest.mark.parametrize(("data", "message"), [
    ({"train": ["one"], "test": ["two"]}, "give all documents as data={'train': texts}"),
    ({"train": ["one", None]}, r"data\['train'\], record 1 \(from 0\) is of type NoneType; expected a string"),
    ({"train": [{"body": "one"}]}, r"'text' of data\['train'\], record 0 .* it has 'body'"),
])
def test_unusable_texts_are_refused_by_number(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        in_memory.store_texts(data, corpora.Config(), tmp_path)
