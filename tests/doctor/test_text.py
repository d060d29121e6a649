"""What `lmrep doctor` finds of the text: corpus, splits, stores, tokenizer, examples."""

import shutil

import pytest

from lmrep import doctor
from lmrep.data import tokenizers
from lmrep.doctor import text
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.models import PRESETS
from tests import small
from tests.doctor import examined, failed

# The corpus


def test_a_file_that_cannot_be_read(home, config, tmp_path):
    (tmp_path / "bad.txt").symlink_to("/proc/self/mem")  # which even root cannot read at its start
    config.data.files = f"{tmp_path}/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)
    assert "bad.txt" in failed(found)["corpus"] and failed(found).keys() == {"corpus"}
    assert found["tokenizer"].mark == found["checkpoints"].mark == doctor.OK


@pytest.mark.parametrize("documents", [text.DOCUMENTS, 5])
def test_bytes_that_are_not_utf8_in_the_first_documents_or_beyond(config, tmp_path, monkeypatch, documents):
    monkeypatch.setattr(text, "DOCUMENTS", documents)
    texts = small.corpus(tmp_path / "texts", 20)
    (texts / "99.txt").write_bytes(b"caf\xe9 au lait\n")
    config.data.files = f"{texts}/*.txt"
    said = failed(examined(config, tmp_path / "run", tmp_path))["corpus"]
    assert "99.txt, line 1: byte 0xe9" in said and "iconv" in said


def test_a_corpus_that_is_read_in_part(home, config, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "DOCUMENTS", 5)
    (tmp_path / "texts").mkdir()
    for path in (home / "texts").iterdir():
        shutil.copy(path, tmp_path / "texts")
    (tmp_path / "texts/98.txt").write_text("")
    (tmp_path / "texts/99.txt").write_text(" \n\n")
    config.data.files = f"{tmp_path}/texts/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)
    assert not failed(found) and "62 files" in found["corpus"].text and "0.1 of the documents" in found["splits"].text


def test_a_corpus_too_small_for_its_splits_or_a_batch(config, tmp_path):
    config.data.files = f"{small.corpus(tmp_path / 'two', 2)}/*.txt"
    assert "too few for the splits" in failed(examined(config, tmp_path / "run", tmp_path))["splits"]
    config.data.files = f"{small.corpus(tmp_path / 'three', 3)}/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)["splits"]
    assert found.mark == doctor.WARNING and "lower batch_size or length" in found.text
    assert "of the text is held out instead of 20%: the corpus has 3 documents" in found.text


def test_lines_of_jsonl_that_are_none(config, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "The red cat."}\n{"text": \n')
    config.data.update({"corpus": "jsonl", "files": f"{tmp_path}/*.jsonl", "validation": 0.0, "test": 0.0})
    assert "texts.jsonl, line 2 is not JSON" in failed(examined(config, tmp_path / "run", tmp_path))["corpus"]
    config.data.damaged_lines = 1
    found = examined(config, tmp_path / "run", tmp_path)["corpus"]
    assert found.mark == doctor.WARNING and "1 damaged lines" in found.text


def test_each_source_of_a_mixture_is_looked_at(home, config, tmp_path):
    config.sources = ({"name": "mine", "data": {}}, {"name": "theirs", "data": {"files": f"{tmp_path}/*.txt"}})
    found = examined(config, tmp_path / "run", tmp_path)
    assert "matches no file" in failed(found)["corpus theirs"] and found["splits mine"].mark == doctor.OK
    small.corpus(tmp_path / "texts", 20, seed=3)
    config.sources[1]["data"]["files"] = f"{tmp_path}/texts/*.txt"
    assert not failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert not (tmp_path / "data").exists()
    build.prepared(experiments.parse(config), tmp_path / "data")
    found = examined(config, tmp_path / "run", tmp_path / "data")
    assert {finding.mark for finding in found.values()} == {doctor.OK} and "built in" in found["store"].text


def test_evaluation_files_that_are_not_there(config, tmp_path):
    found = examined(config, tmp_path / "run", tmp_path, files=f"{tmp_path}/none*.txt")
    assert "matches no file" in failed(found)["evaluation"] and found["corpus"].mark == doctor.OK


@pytest.mark.parametrize("name", ["*array_record*", "sentences.npy"])
def test_a_damaged_store(home, config, tmp_path, name):
    shutil.copytree(home / "data", tmp_path / "data")
    [path] = next(iter((tmp_path / "data").glob("text_files*[!k]"))).glob(f"train/{name}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = failed(examined(config, tmp_path / "run", tmp_path / "data"))["store"]
    assert str(tmp_path / "data") in said and "delete " in said


# The tokenizer


@pytest.fixture(scope="module")
def pieces(home):
    texts = [path.read_text() for path in sorted((home / "texts").iterdir())]
    return tokenizers.train(tokenizers.Config(vocab_size=200), lambda: iter(texts)).tokens


@pytest.mark.parametrize(("change", "said"), [
    (lambda p: [*p, p[20]], "is on line 21 already"),
    (lambda p: [x for x in p if x != "[MASK]"], "[MASK] on none of its"),
    (lambda p: [*p[:7], "", *p[7:]], "line 8 is empty"),
    (lambda p: [x.title() if x.isalpha() else x for x in p], "tokenizer.lowercase=False"),
    (lambda p: None, "cannot read the vocabulary"),
])
def test_a_vocabulary_that_will_not_do(config, pieces, tmp_path, change, said):
    path, found = tmp_path / "vocab.txt", change(pieces)
    if found:
        path.write_text("".join(f"{piece}\n" for piece in found))
    config.tokenizer.vocab_file = str(path)
    assert said in failed(examined(config, tmp_path / "run", tmp_path))["tokenizer"]


def test_a_table_smaller_than_the_vocabulary(config, tmp_path):
    config.model.vocab = 100
    said = failed(examined(config, tmp_path / "run", tmp_path))["tokenizer"]
    assert "200 ids, and the model's table 100 rows; set model.vocab to 200" in said


def test_a_table_much_larger_than_the_vocabulary_is_told():
    network = PRESETS["bert_tiny"].config
    assert "30,522 rows, and the tokenizer 2,000 ids" in build.unused_rows(network, 2000)
    assert not build.unused_rows(network, 30000)


def test_a_vocabulary_of_another_language(config, pieces, tmp_path):
    without_b = [piece for piece in pieces if "b" not in piece]  # one word in ten has one
    for kept, mark, said in ((pieces[:5], doctor.FAILED, "choose another"), (without_b, doctor.WARNING, "is that")):
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in kept))
        config.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
        found = examined(config, tmp_path / "run", tmp_path)["examples"]
        assert found.mark == mark and "[UNK]" in found.text and said in found.text


def test_a_sample_text_longer_than_the_model_is_refused(home, config):
    config.samples = ("The [MASK] cat." + " The old dog." * 20, "No mask.")
    assert "32 at most" in failed(examined(config, home / "run", home / "data"))["tokenizer"]
