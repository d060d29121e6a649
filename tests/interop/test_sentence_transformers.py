"""A published directory that the sentence-transformers library loads too."""

import json

import pytest

import lmrep
from lmrep.core.errors import UserError
from tests import given


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return lmrep.load(given.workdir(tmp_path_factory.mktemp("sentences")))


@pytest.fixture(scope="module")
def published(run, tmp_path_factory):
    target = tmp_path_factory.mktemp("published") / "st"
    converted = lmrep.convert(run.directory, target, to="huggingface", sentence_transformers="mean")
    assert converted.directory == target and converted.parameters
    assert not any(line.startswith("vectors differ") for line in converted.remarks)
    return target


def test_files_describe_the_encoder_and_its_pooling(published):
    def read(name):
        return json.loads((published / name).read_text())

    assert [(module["path"], module["type"].rpartition(".")[2]) for module in read("modules.json")] == [
        ("", "Transformer"), ("1_Pooling", "Pooling")]
    assert read("1_Pooling/config.json") == {
        "word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
        "pooling_mode_cls_token": False}
    assert read("sentence_bert_config.json") == {"max_seq_length": 48, "do_lower_case": False}
    assert read("config_sentence_transformers.json")["similarity_fn_name"] == "cosine"
    assert (published / "config.json").exists() and (published / "tokenizer.json").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"sentence_transformers": "mean"}, "--sentence_transformers is 'mean'; it needs --to=huggingface"),
    ({"to": "huggingface", "sentence_transformers": "first"}, "is 'first'; expected one of mean, cls, max"),
])
def test_other_poolings_and_directions_are_refused(run, tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        lmrep.convert(run.directory, tmp_path / "st", **arguments)
