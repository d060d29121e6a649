"""The words outside of the vocabulary: in the token store, and as characters in batches."""

import numpy as np
import pytest

from lmrep.data import corpora, formats, tokenizers
from lmrep.data.formats import FORMATS
from lmrep.data.store import prepare as preparing
from lmrep.data.store.prepare import prepare_corpus

SIZE = 64
TOKENIZER = tokenizers.Config(name="elmo", vocab_size=SIZE)


def documents(count=40, seed=0):
    """Documents of sentences, of few frequent and many rare words, long ones too."""
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(50)] + [f"rare\u00e9{i}" * (1 + i % 12) for i in range(300)]
    p = np.r_[np.full(50, 0.9 / 50), np.full(300, 0.1 / 300)]
    return ["\n".join(" ".join(rng.choice(words, rng.integers(1, 20), p=p)) for _ in range(rng.integers(1, 9)))
            for _ in range(count)]


def write(directory, texts):
    directory.mkdir(exist_ok=True)
    (directory / "text.txt").write_text("\n\n".join(texts))
    return corpora.Config(corpus="text_files", files=str(directory / "text.txt"), validation=0.2)


@pytest.fixture(scope="module", name="prepared")
def _prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("elmo")
    return prepare_corpus(write(directory, documents()), TOKENIZER, directory / "data")


def characters_of_text(prepared):
    """word -> its characters, for all words of the corpus."""
    words = sorted({word for text in documents() for word in text.split()})
    return dict(zip(words, map(tuple, prepared.tokenizer.characters(words)), strict=True))


def test_batches_have_the_characters_of_every_word(prepared):
    known, tokenizer = characters_of_text(prepared), prepared.tokenizer
    for split, store in prepared.stores.items():
        plan = formats.plan("stream", FORMATS["stream"].config(), store, 16, 0)
        batch = plan.gather(np.arange(plan.examples))
        assert batch["characters"].dtype == np.int32
        real = batch["segment_ids"] > 0
        assert not batch["characters"][~real].any() and batch["characters"][real].all()
        words = {value: word for word, value in known.items()}
        words[tuple(tokenizer.characters(["</S>"])[0])] = "</S>"
        found = [words[tuple(each)] for each in batch["characters"][real]]
        ids = [tokenizer.tokens.index(word) if word in tokenizer.tokens else 2 for word in found]
        assert ids == batch["tokens"][real].tolist()
        assert len(store.unknown) == ids.count(2) > 0, split
        assert found.count("</S>") == len(store.documents) - 1


@pytest.mark.parametrize("name", sorted({"packed", "lines", "full_sentences", "doc_sentences"}))
def test_every_format_has_characters(prepared, name):
    plan = formats.plan(name, FORMATS[name].config(), prepared.stores["train"], 24, 0)
    batch = plan.gather(np.r_[np.arange(plan.examples), -1])
    real = batch["segment_ids"] > 0
    expected = prepared.tokenizer.vocabulary.characters.table[batch["tokens"]]
    known = real & (batch["tokens"] != 2)
    assert (batch["characters"][known] == expected[known]).all()
    assert (batch["characters"][real & ~known] != expected[real & ~known]).any(axis=-1).all()
    assert not batch["characters"][~real].any()


def table(ready):
    """The files of the words outside of the vocabulary, byte for byte."""
    return {(split, file): (ready.directory / split / file).read_bytes() for split in ready.stores
            for file in ("unknown.npy", "unknown_offsets.npy", "unknown_bytes.npy")}


def test_table_depends_neither_on_parts_nor_on_interruptions(tmp_path, monkeypatch):
    data = write(tmp_path, documents(80))

    def content(name):
        return table(prepare_corpus(data, TOKENIZER, tmp_path / name))

    expected = content("one")
    monkeypatch.setattr(preparing, "PART", 2500)
    monkeypatch.setattr(preparing, "BATCH", 500)
    assert content("parts") == expected
    wrote, calls = preparing._write, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        wrote(*arguments)

    monkeypatch.setattr(preparing, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        content("resumed")
    assert content("resumed") == expected and len(calls) > 4


@pytest.mark.slow
def test_table_does_not_depend_on_processes(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART", 2500)
    monkeypatch.setattr(preparing, "SMALL", 0)
    monkeypatch.setattr(preparing.host, "cores", lambda: 2)
    assert table(prepare_corpus(write(tmp_path, documents()), TOKENIZER, tmp_path / "data")) == table(prepared)


def test_stores_of_other_tokenizers_have_no_table(tmp_path):
    words = tokenizers.Config(name="words", vocab_size=SIZE)
    ready = prepare_corpus(write(tmp_path, documents()), words, tmp_path / "data")
    assert ready.stores["train"].unknown is None and not list(ready.directory.rglob("unknown*"))
    plan = formats.plan("stream", FORMATS["stream"].config(), ready.stores["train"], 16, 0)
    assert "characters" not in plan.gather(np.arange(2))
