"""Preparing: stores hold the text of the corpus, are built once, and are complete or absent."""

import dataclasses
import fcntl
import hashlib
import itertools
import json
import shutil
import threading

import numpy as np
import pytest

from lmrep.core import remote, sealed_cache
from lmrep.core.errors import RunFault, UserError
from lmrep.data import corpora, sentences, tokenizers
from lmrep.data.mixture import DataSource
from lmrep.data.store import prepare, scan, token_store
from lmrep.data.store.sources import prepare_sources

WORDS = "a quick brown fox jumps over the lazy dog near river bank while rain falls on old stone bridges"


def texts(count=200, seed=0):
    """Documents of random words; each also has two words of its own."""
    rng = np.random.default_rng(seed)

    def sentence(number):
        return f"{' '.join(rng.choice(WORDS.split(), 8)).capitalize()} own{number} q{number}."

    return [" ".join(sentence(i) for _ in range(rng.integers(1, 6))) for i in range(count)]


def write(folder, documents):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(documents))
    return corpora.Config(corpus="text_files", files=str(path), validation=0.1, test=0.1)


SETTINGS = tokenizers.Config(vocab_size=200)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A small corpus, prepared: (what `prepare` gives, its data config, its data directory, its messages)."""
    top = tmp_path_factory.mktemp("prepare")
    config, messages = write(top / "files", texts()), []
    return prepare.prepare_corpus(config, SETTINGS, top / "data", messages.append), config, top / "data", messages


def content(ready):
    """Everything a run can see of it."""
    return {split: (s.take(np.arange(s.tokens)).tolist(), s.sentences.tolist(), s.documents.tolist(), s.fingerprint)
            for split, s in ready.stores.items()}, ready.tokenizer.tokens, ready.statistics


def test_each_split_holds_its_documents_in_order(prepared):
    ready, config, _, _ = prepared
    documents = list(corpora.open_corpus(config).documents())
    splits = corpora.assign(np.array([corpora.hash_position(t) for t in documents], np.uint64), config)
    assert list(ready.stores) == ["train", "validation", "test"]
    for name, opened in ready.stores.items():
        expected = [t for t, split in zip(documents, splits, strict=True) if corpora.SPLITS[split] == name]
        assert len(opened.documents) == len(expected) + 1 > 1 and opened.split == name
        for number, text in enumerate(expected):
            first, last = opened.documents[number : number + 2]
            bounds = opened.sentences[first : last + 1]
            stored = [opened.take(np.arange(a, b)).tolist() for a, b in itertools.pairwise(bounds)]
            assert stored == [ids.tolist() for ids in ready.tokenizer.encode_batch(sentences.split(text))]


def test_counts_and_statistics_are_those_of_the_stores(prepared):
    ready, config, _, _ = prepared
    train = ready.stores["train"]
    stream = train.take(np.arange(train.tokens))
    np.testing.assert_array_equal(train.vocabulary.counts, np.bincount(stream, minlength=ready.tokenizer.size))
    assert train.vocabulary is ready.tokenizer.vocabulary
    for name, opened in ready.stores.items():
        facts = ready.statistics[name]
        ids = opened.take(np.arange(opened.tokens))
        assert (facts["documents"], facts["sentences"]) == (len(opened.documents) - 1, len(opened.sentences) - 1)
        assert facts["tokens"] == opened.tokens and facts["unknown"] == (ids == 1).sum()
        assert facts["tokens_per_word"] == facts["tokens"] / facts["words"]
        assert facts["unknown_fraction"] == facts["unknown"] / facts["tokens"]
    documents = list(corpora.open_corpus(config).documents())
    assert sum(f["characters"] for f in ready.statistics.values()) == sum(map(len, documents))
    assert sum(f["words"] for f in ready.statistics.values()) == sum(len(text.split()) for text in documents)


def test_the_tokenizer_is_trained_on_the_train_split_alone(tmp_path):
    foreign_text = next(text for i in range(100)  # in the validation split
                   if 0.1 <= corpora.hash_position(text := f"жжж жж {i}") / 2**64 < 0.2)
    ready = prepare.prepare_corpus(write(tmp_path / "files", [*texts(100), foreign_text]), SETTINGS, tmp_path / "data")
    assert not any("ж" in token for token in ready.tokenizer.tokens)
    assert ready.statistics["validation"]["unknown"] == 2 and ready.statistics["train"]["unknown"] == 0


def test_existing_stores_are_opened_and_not_built_again(prepared, monkeypatch):
    ready, config, data_dir, messages = prepared
    assert any("training a tokenizer" in line for line in messages)
    monkeypatch.setattr(prepare, "_build", None)
    lines = []
    again = prepare.prepare_corpus(config, SETTINGS, data_dir, lines.append)
    assert content(again) == content(ready) and not lines


def test_stores_do_not_depend_on_the_location_of_the_corpus(prepared, tmp_path):
    moved = write(tmp_path / "moved", texts())
    assert content(prepare.prepare_corpus(moved, SETTINGS, tmp_path)) == content(prepared[0])


def test_the_fingerprint_depends_on_all_that_changes_the_content(prepared, tmp_path):
    _, config, data_dir, _ = prepared
    more = write(tmp_path / "more", [*texts(), "One more document."])
    choices = [(config, SETTINGS), (more, SETTINGS), (dataclasses.replace(config, test=0.2), SETTINGS),
               (dataclasses.replace(config, documents="line"), SETTINGS),
               (config, dataclasses.replace(SETTINGS, vocab_size=190)),
               (config, dataclasses.replace(SETTINGS, lowercase=False))]
    results = [prepare.prepare_corpus(data, settings, data_dir) for data, settings in choices]
    names = [opened.fingerprint for ready in results for opened in ready.stores.values()]
    assert len({ready.directory for ready in results}) == len(choices) and len(set(names)) == len(names)


@pytest.mark.parametrize("vocabulary", [{}, {"name": "byte_level_bpe", "vocab_size": 300}], ids=["collapsed", "kept"])
def test_one_sentence_a_line_is_found_or_set(tmp_path, vocabulary):
    documents = [text.lower().replace(". ", "\n").replace(".", "") for text in texts(60)]  # no marks
    config, settings = write(tmp_path / "files", documents), dataclasses.replace(SETTINGS, **vocabulary)
    ready = {mode: prepare.prepare_corpus(dataclasses.replace(config, sentences=mode), settings, tmp_path)
             for mode in ("auto", "line", "split")}
    found = {mode: sum(facts["sentences"] for facts in each.statistics.values()) for mode, each in ready.items()}
    assert found == {"auto": sum(text.count("\n") + 1 for text in documents), "line": found["auto"], "split": 60}
    assert ready["auto"].directory == ready["line"].directory != ready["split"].directory
    assert ready["auto"].sentences.startswith("one a line") and ready["split"].sentences.startswith("by punctuation")


def test_copies_that_differ_in_white_space_are_in_one_split(tmp_path):
    documents = [text.replace(" ", separator) for text in texts(80) for separator in (" ", "\n", "  ", " \t")]
    config = write(tmp_path, documents)
    splits = corpora.assign(np.array([corpora.hash_position(text) for text in documents], np.uint64), config)
    assert (splits.reshape(80, 4) == splits[::4, None]).all() and len(set(splits)) == 3


def test_splits_of_fraction_zero_are_not_built(tmp_path):
    config = dataclasses.replace(write(tmp_path / "files", texts(5)), test=0.0)
    ready = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert list(ready.stores) == list(ready.statistics) == ["train", "validation"]


def test_a_second_process_waits_and_reports_it(prepared, tmp_path):
    ready, config, _, _ = prepared
    waiting, lines = threading.Event(), []

    def report(line):
        lines.append(line)
        if "waiting for another process" in line:
            waiting.set()

    with open(tmp_path / f"{ready.directory.name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=prepare.prepare_corpus, args=(config, SETTINGS, tmp_path, report))
        thread.start()
        assert waiting.wait(30)
        assert not (tmp_path / ready.directory.name).exists()
    thread.join()
    assert content(prepare.prepare_corpus(config, SETTINGS, tmp_path)) == content(ready)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("change", [lambda texts: [*texts, "One more."], lambda texts: texts[:-1],
                                    lambda texts: [*texts[:-1], texts[-1][::-1]]])
def test_corpora_that_change_during_the_build_are_a_fault(prepared, tmp_path, monkeypatch, change, before):
    config, data_dir = write(tmp_path / "files", texts()), tmp_path / "data"
    survey = scan.survey

    def survey_and_change(*arguments):
        if before:
            write(tmp_path / "files", change(texts()))
        scanned = survey(*arguments)
        write(tmp_path / "files", change(texts()))
        return scanned

    monkeypatch.setattr(scan, "survey", survey_and_change)
    with pytest.raises(RunFault, match="changed while it was read"):
        prepare.prepare_corpus(config, SETTINGS, data_dir)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
    """A store of 60 documents: (its config, what a run can see of it, its data directory)."""
    top = tmp_path_factory.mktemp("small_store")
    config = write(top / "files", texts(60))
    return config, content(prepare.prepare_corpus(config, SETTINGS, top / "data")), top / "data"


@pytest.mark.parametrize("file", ["train/sentences.npy", "train/documents.npy", "train/*array_record*", "counts.npy",
                                  "statistics.json", "tokenizer/vocab.txt", "tokenizer/tokenizer_config.json",
                                  "manifest.json"])
def test_a_directory_with_a_flipped_bit_is_built_again(small_store, tmp_path, file):
    (config, before, data_dir), lines = small_store, []
    (directory,) = (path for path in shutil.copytree(data_dir, tmp_path / "data").iterdir() if path.is_dir())
    (path,) = directory.glob(file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path / "data", lines.append)
    (line,) = [line for line in lines if "damaged" in line]
    assert line.startswith(f"the token store {directory} is damaged: {path.relative_to(directory)} has")
    assert line.endswith("; building it again")
    assert content(again) == before and not sealed_cache.find_damage(directory)


def test_a_directory_without_a_file_is_built_again(small_store, tmp_path):
    config, before, data_dir = small_store
    (path,) = shutil.copytree(data_dir, tmp_path / "data").glob("*/train/sentences.npy")
    path.unlink()
    assert content(prepare.prepare_corpus(config, SETTINGS, tmp_path / "data")) == before


def test_large_files_are_hashed_once_per_machine_and_small_ones_always(tmp_path, monkeypatch):
    config = write(tmp_path / "files", texts(60))
    directory = prepare.prepare_corpus(config, SETTINGS, tmp_path / "data").directory
    monkeypatch.setattr(sealed_cache, "ALWAYS_VERIFIED", 0)
    monkeypatch.setattr(sealed_cache, "SMALL_FILE", 3000)
    (large,) = directory.glob("train/*array_record*")
    read, original = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: read.append(file.name) or original(file, name))
    assert not sealed_cache.find_damage(directory) and str(large) in read
    read.clear()
    assert not sealed_cache.find_damage(directory)
    assert str(large) not in read and str(directory / "statistics.json") in read
    data = bytearray(large.read_bytes())
    data[len(data) // 2] ^= 4
    large.write_bytes(data)  # its time changes, too
    assert "array_record" in sealed_cache.find_damage(directory)


def test_the_directory_has_the_documented_files(prepared):
    ready = prepared[0]
    assert {path.name for path in ready.directory.iterdir()} == {
        "tokenizer", "train", "validation", "test", "counts.npy", "statistics.json", "manifest.json"}
    assert json.loads((ready.directory / "statistics.json").read_text()) == {**ready.statistics, "text": {}}
    assert all(len(opened.fingerprint) == len(hashlib.sha256().hexdigest()) for opened in ready.stores.values())


def test_anomalies_of_the_text_are_counted_and_reported(tmp_path):
    long = "x" * 10_000
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join([*texts(20), "N\0UL here.", f"A {long} word."]).encode())
    config, lines = corpora.Config(corpus="text_files", files=str(path), validation=0, test=0), []
    ready = prepare.prepare_corpus(config, SETTINGS, tmp_path, lines.append)
    assert ready.text["nul_characters"] == ready.text["byte_order_marks"] == 1 and ready.text["carriage_returns"] > 0
    assert ready.statistics["train"]["long_words"] == 1
    (line,) = [line for line in lines if line.startswith("in the text: ")]
    assert "1 nul characters" in line and "1 byte order marks" in line
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert again.text == ready.text and again.statistics == ready.statistics


def test_token_stores_of_a_remote_data_directory_are_read_there(prepared, tmp_path, monkeypatch):
    def opened():
        lines = []
        return prepare.prepare_corpus(prepared[1], SETTINGS, "memory://data/stores", lines.append), lines

    ready, store = prepared[0], remote.Store("memory://data/stores", "--data_dir", "")
    for path in ready.directory.rglob("*"):
        if path.is_file():
            store.upload(path, path.relative_to(ready.directory.parent).as_posix())
    name, url = ready.directory.name, f"memory://data/stores/{ready.directory.name}"
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_build", None)
        found, lines = opened()
        assert lines == [f"downloading the index of {url}"]
        assert found.directory == tmp_path / f"machine/{name}.index" and content(found) == content(ready)
        assert not list(found.directory.rglob(token_store.RECORDS)) and opened()[1] == []
        (found.directory / "counts.npy").write_bytes(b"damaged")
        assert len(opened()[1]) == 1 and content(opened()[0]) == content(ready)
        shutil.rmtree(found.directory)
        records = "train/tokens-train.array_record-00000"
        for damaged, change in (("counts.npy", b"damaged"), (records, b"damaged"), (records, None)):
            store.write(f"{name}/{damaged}", change) if change else store.remove(f"{name}/{damaged}")
            with pytest.raises(UserError, match=f"{url} is damaged: {damaged} .*; copy it there again"):
                opened()
            assert not found.directory.exists()
            store.upload(ready.directory / damaged, f"{name}/{damaged}")
    with monkeypatch.context() as patch:
        patch.delattr("os.memfd_create")  # on other systems the store is downloaded whole
        found, lines = opened()
        assert lines == [f"downloading {url}"] and content(found) == content(ready)
        assert found.directory == tmp_path / f"machine/{name}" and list(found.directory.rglob(token_store.RECORDS))
        shutil.rmtree(found.directory)
    store.remove(f"{name}/manifest.json")
    found, lines = opened()
    assert "preparing the data on this machine" in lines[0] and content(found) == content(ready)


def test_a_damaged_common_tokenizer_is_trained_again(tmp_path, caplog):
    sources = [DataSource(name, 1.0, write(tmp_path / name, texts(40, seed))) for seed, name in enumerate("ab")]
    ready = prepare_sources(sources, 0.0, SETTINGS, tmp_path / "data")
    (home,) = (tmp_path / "data").glob("tokenizer-*")
    (home / "vocab.txt").write_text("damaged")
    again = prepare_sources(sources, 0.0, SETTINGS, tmp_path / "data")
    assert f"{home} is damaged and will be built again: vocab.txt has" in caplog.text
    assert again.tokenizer.fingerprint == ready.tokenizer.fingerprint
