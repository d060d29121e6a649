"""`lmrep doctor` on text: corpus, splits, stores, tokenizer, examples."""

import shutil
import types

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


def test_large_corpus_is_sampled(home, config, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "DOCUMENTS", 5)
    (tmp_path / "texts").mkdir()
    for path in (home / "texts").iterdir():
        shutil.copy(path, tmp_path / "texts")
    (tmp_path / "texts/98.txt").write_text("")
    (tmp_path / "texts/99.txt").write_text(" \n\n")
    config.data.files = f"{tmp_path}/texts/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)
    assert not failed(found) and "62 files" in found["corpus"].text and "0.1 of the documents" in found["splits"].text


def test_corpus_too_small_for_its_splits_or_a_batch_is_reported(config, tmp_path):
    config.data.files = f"{small.corpus(tmp_path / 'two', 2)}/*.txt"
    assert "too few for the splits" in failed(examined(config, tmp_path / "run", tmp_path))["splits"]
    config.data.files = f"{small.corpus(tmp_path / 'three', 3)}/*.txt"
    found = examined(config, tmp_path / "run", tmp_path)["splits"]
    assert found.mark == doctor.WARNING and "lower batch_size or length" in found.text
    assert "of the text is held out instead of 20%: the corpus has 3 documents" in found.text


def test_tfds_dataset_that_is_not_prepared_fails_without_a_download(config, tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
    builder = types.SimpleNamespace(info=types.SimpleNamespace(splits={}), download_and_prepare=None)
    monkeypatch.setattr(tfds, "builder", lambda *_, **__: builder)
    config.data.update({"corpus": "tfds", "files": "", "tfds_name": "imdb_reviews"})
    found = examined(config, tmp_path / "run", tmp_path)
    message = failed(found)["corpus"]
    assert "'imdb_reviews' is not prepared in" in message and "tfds build NAME --file_format=array_record" in message
    assert failed(found).keys() == {"corpus"} and not (tmp_path / "tfds").exists()


def test_damaged_lines_that_are_allowed_are_a_warning(config, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "The red cat."}\n{"text": \n')
    config.data.update({"corpus": "jsonl", "files": f"{tmp_path}/*.jsonl", "validation": 0.0, "test": 0.0})
    config.data.damaged_lines = 1
    found = examined(config, tmp_path / "run", tmp_path)["corpus"]
    assert found.mark == doctor.WARNING and "1 damaged lines" in found.text


def test_each_source_of_a_mixture_is_checked(home, config, tmp_path):
    config.sources = ({"name": "mine", "data": {}}, {"name": "theirs", "data": {"files": f"{tmp_path}/*.txt"}})
    found = examined(config, tmp_path / "run", tmp_path)
    assert "matches no file" in failed(found)["corpus theirs"] and found["splits mine"].mark == doctor.OK
    small.corpus(tmp_path / "texts", 20, seed=3)
    config.sources[1]["data"]["files"] = f"{tmp_path}/texts/*.txt"
    assert not failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert not (tmp_path / "data").exists()
    build.prepare_data(experiments.parse(config), tmp_path / "data")
    found = examined(config, tmp_path / "run", tmp_path / "data")
    assert {finding.mark for finding in found.values()} == {doctor.OK} and "built in" in found["store"].text


def test_thousands_of_epochs_are_a_warning(home, config, tmp_path):
    def passes(about, folder) -> float:
        found = examined(config, tmp_path / "run", folder)["epochs"]
        words = found.text.replace(",", "").split(f"12 steps read 6144 tokens: {about}")[1].split()
        passes, tokens = float(words[0]), float(words[4 if about else 3])
        assert found.mark == doctor.OK and passes * tokens == pytest.approx(6144, rel=0.05)
        return passes

    assert passes("about ", tmp_path) == pytest.approx(passes("", home / "data"), rel=0.5)
    config.steps = 10_000_000
    found = examined(config, tmp_path / "run", tmp_path)["epochs"]
    assert found.mark == doctor.WARNING and "lower steps" in found.text
    experiment, sample = experiments.parse(config), text.Sample(["a"], False, None, False)
    found = text.epochs(experiment, None, sample)
    assert found.mark == doctor.SKIPPED and "not counted" in found.text


@pytest.mark.parametrize("name", ["*array_record*", "sentences.npy"])
def test_damaged_store_will_be_built_again(home, config, tmp_path, name):
    shutil.copytree(home / "data", tmp_path / "data")
    for path in (tmp_path / "data").glob(f"text_files*/train/{name}"):  # tests that share the folder may add stores
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = examined(config, tmp_path / "run", tmp_path / "data")["store"]
    assert found.mark == doctor.WARNING and str(tmp_path / "data") in found.text
    assert "is damaged" in found.text and found.text.endswith("the run will build it again")


# The tokenizer


@pytest.fixture(scope="module")
def vocabulary(home):
    texts = [path.read_text() for path in sorted((home / "texts").iterdir())]
    return tokenizers.train(tokenizers.Config(vocab_size=200), lambda: iter(texts)).tokens


def test_embedding_table_much_larger_than_the_vocabulary_is_reported():
    network = PRESETS["bert_tiny"].config
    assert "30,522 rows, and the tokenizer 2,000 ids" in build.unused_rows(network.vocab, 2000)
    assert not build.unused_rows(network.vocab, 30000)


def test_vocabulary_that_does_not_cover_the_text_is_reported(config, vocabulary, tmp_path):
    without_b = [token for token in vocabulary if "b" not in token]  # one word in ten has one
    for kept, mark, message in ((vocabulary[:5], doctor.FAILED, "choose another"),
                                (without_b, doctor.WARNING, "the right vocabulary")):
        (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in kept))
        config.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
        found = examined(config, tmp_path / "run", tmp_path)["examples"]
        assert found.mark == mark and "unknown" in found.text and message in found.text


def test_pairs_of_one_class_are_a_warning(vocabulary, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("The red cat sees the old dog.\n\n" * 60)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    config = small.config(tmp_path / "texts", "masked", "segment_pair")
    config.objective.sentence_pair, config.data.documents = True, "blank_line"
    config.tokenizer.vocab_file, config.mesh.data = str(tmp_path / "vocab.txt"), -1
    found = examined(config, tmp_path / "run", tmp_path)["examples"]
    assert found.mark == doctor.WARNING and "have label 1" in found.text


def test_sample_text_longer_than_the_model_is_refused(home, config):
    config.samples = ("The [MASK] cat." + " The old dog." * 20, "No mask.")
    assert "32 at most" in failed(examined(config, home / "run", home / "data"))["tokenizer"]
