"""Properties of every tokenizer, over `TOKENIZERS`: each is trained on the same small corpus."""

import functools
import json
import os
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers as library

from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare
from lmrep.data.tokenizers import TOKENIZERS, Config
from tests.data.sentencepiece_texts import LETTERS

# Words whose pairs of letters tie in frequency, so that the order in which a trainer meets them would show.
TIES = " ".join(f"{a}{b}{c}" for c in "aeiou\u00e4\u0436" for b in "klmnrst" for a in "bdfgpqvwx")
DRAW = random.Random(0)
LINES = [" ".join([*DRAW.choices(LETTERS, k=9), "Caf\u00e9 20 , \u5927\u5b66 ."]) for _ in range(60)]
CORPUS = [*LINES, TIES, "Was it?\nIt was!"] * 2
SIZES = dict.fromkeys(TOKENIZERS, 400) | {name: 250 for name in TOKENIZERS if name.startswith("sentencepiece")} | {
    name: 1200 for name in ("words", "words_text", "elmo", "elmo_text", "fastai_v1", "fastai_paper")}  # all words
LIBRARY = {"wordpiece": ("[CLS]", "[SEP]"), "bpe": (), "words": (), "words_text": ()} | dict.fromkeys(
    ("bytes", "byte_level_bpe"), ("<s>", "</s>"))  # whose tokenizer.json `tokenizers` reads; what it adds to a text
EXACT = {"bytes", "byte_level_bpe"}  # decode to the text itself


def train(name, lowercase=True):
    return tokenizers.train(Config(name, SIZES[name], lowercase=lowercase), lambda: iter(CORPUS))


trained = functools.lru_cache(maxsize=None)(train)


def squeezed(text, lowercase):
    """A text without white space, and without case and accents if they are not kept."""
    if lowercase:
        text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return "".join(unicodedata.normalize("NFKC", text).split())


def boundaries(vocabulary):
    return vocabulary.starts_word, vocabulary.ends_word


def known(tokenizer, ids):
    """Ids, of which those of words outside of the vocabulary, numbered as they are met, are all the same."""
    return np.minimum(ids, tokenizer.size)


@pytest.fixture(scope="module")
def elsewhere():
    """The fingerprints that another process with other hashes and one thread gives."""
    code = "import json\nfrom tests.data.test_tokenizer_properties import TOKENIZERS, train\n" \
           "print(json.dumps({name: train(name).fingerprint for name in TOKENIZERS}))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    found = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True)
    return json.loads(found.stdout)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_same_text_trains_the_same_tokenizer_in_every_process(name, elsewhere):
    assert trained(name).fingerprint == train(name).fingerprint == elsewhere[name]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_trained_vocabulary_has_its_special_tokens_first_and_its_size(name):
    tokenizer, definition = trained(name), TOKENIZERS[name].trained
    assert tokenizer.tokens[: len(definition.specials)] == [*definition.specials.values()]
    assert len(set(tokenizer.tokens)) == tokenizer.size == tokenizer.vocabulary.size
    assert definition.min_size <= tokenizer.size <= SIZES[name]
    assert tokenizer.size == SIZES[name] or not definition.exact_size
    assert {role: tokenizer.tokens[i] for role, i in tokenizer.vocabulary.specials.items()} == tokenizer.specials
    assert tokenizer.specials.items() >= definition.specials.items()
    assert [tokenizer.tokens[i] for i in tokenizer.vocabulary.sentinels] == [
        f"<extra_id_{i}>" for i in range(definition.sentinels)]
    counts = np.arange(tokenizer.size)
    assert tokenizer.with_counts(counts).vocabulary.counts.tolist() == counts.tolist()
    assert not tokenizer.vocabulary.counts.any()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_decoding_gives_the_text_and_encoding_again_the_ids(name):
    tokenizer = trained(name)
    batch = tokenizer.encode_batch(LINES[:20])
    for text, ids in zip(LINES[:20], batch, strict=True):
        assert ids.dtype == np.int32 and 0 <= ids.min() <= ids.max() < tokenizer.size
        decoded = tokenizer.decode(ids)
        assert squeezed(decoded, tokenizer.lowercase) == squeezed(text, tokenizer.lowercase)
        assert decoded == text or name not in EXACT
        np.testing.assert_array_equal(tokenizer.encode_batch([decoded])[0], ids)
    assert not np.isin(np.concatenate(batch), [*tokenizer.vocabulary.specials.values()]).any()
    assert tokenizer.encode_batch([]) == [] and not tokenizer.encode_batch(["", LINES[0]])[0].size


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_have_ids_offsets_and_words_of_the_text(name):
    tokenizer = trained(name)
    for text in [*LINES[:10], "Caf\u00e9  Kub\u5927 zz?\tx\n", "", " "]:
        encoding = tokenizer.encode(text)
        assert encoding.ids.tolist() == tokenizer.encode_batch([text])[0].tolist()
        assert len(encoding.ids) == len(encoding.tokens) == len(encoding.offsets) == len(encoding.words)
        covered = {i for first, last in encoding.offsets for i in range(first, last)}
        assert {i for i, c in enumerate(text) if not c.isspace()} <= covered <= {*range(len(text))}
        assert encoding.offsets == sorted(encoding.offsets)
        assert encoding.words == sorted(encoding.words) and (not encoding.words or encoding.words[0] == 0)
        if text in LINES:
            begins, (starts, ends) = np.diff(encoding.words) > 0, boundaries(tokenizer.vocabulary)
            flags = ends[encoding.ids[:-1]] if starts is None else starts[encoding.ids[1:]]
            assert flags[begins].all() and begins.any() and (starts is None) != (ends is None)
            # pieces of ALBERT and XLNet may begin a masked word inside of a word, too
            assert (flags == begins).all() or name.startswith("sentencepiece")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_saved_tokenizer_is_loaded_as_the_same(name, tmp_path):
    tokenizer, text = trained(name), " ".join([*LINES[0].split(), *trained(name).specials.values()])
    tokenizer.save(tmp_path)
    config = Config(name, vocab_file=str(tmp_path), lowercase=tokenizer.lowercase)
    for loaded in (tokenizers.load(tmp_path), tokenizers.from_vocab_file(config)):
        assert (loaded.name, loaded.fingerprint, loaded.specials) == (name, tokenizer.fingerprint, tokenizer.specials)
        for specials in (False, True):
            ids, expected = (each.encode(text, specials).ids for each in (loaded, tokenizer))
            np.testing.assert_array_equal(known(loaded, ids), known(tokenizer, expected))
    assert tokenizers.size(config) == tokenizer.size
    if (tmp_path / "tokenizer.json").exists() and name in LIBRARY:
        in_library = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert in_library.encode(text, add_special_tokens=False).ids == tokenizer.encode(text, True).ids.tolist()
        around = [[tokenizer.ids[special]] for special in LIBRARY[name]] or [[], []]
        assert in_library.encode("bu").ids == [*around[0], *tokenizer.encode("bu").ids, *around[1]]
    others = {trained(other).fingerprint for other in TOKENIZERS}
    assert len(others) == len(TOKENIZERS)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_names_of_special_tokens_are_ordinary_text_unless_requested(name):
    tokenizer = trained(name)
    ids = {role: i for role, i in tokenizer.vocabulary.specials.items() if role != "unk"}
    text = " ".join(["bu", *(tokenizer.tokens[i] for i in ids.values()), "bu"])
    for plain in (tokenizer.encode(text).ids, tokenizer.encode_batch([text])[0]):
        assert not {*ids.values()} & {*plain.tolist()}
    assert [i for i in tokenizer.encode(text, specials=True).ids.tolist() if i in ids.values()] == [*ids.values()]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_half_of_a_surrogate_pair_is_no_text(name):
    with pytest.raises(TypeError):
        trained(name).encode("a \ud800 b")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_prepared_document_is_its_text_and_the_saved_tokenizer_prepares_the_same(name, tmp_path):
    text = f"{LINES[0]}\n{LINES[1]}"
    (tmp_path / "corpus.txt").write_text("\n\n".join([text, *CORPUS]))
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "corpus.txt"), validation=0.0, test=0.0)
    ready = prepare.prepare_corpus(data, Config(name, SIZES[name], lowercase=TOKENIZERS[name].lowercase is not False),
                            tmp_path / "data")
    store, tokenizer = ready.stores["train"], ready.tokenizer
    first = store.take(np.arange(store.sentences[store.documents[1]]))
    assert squeezed(tokenizer.decode(first), tokenizer.lowercase) == squeezed(text, tokenizer.lowercase)
    if not (tokenizer.lowercase or tokenizer.vocabulary.characters):
        whole = text if TOKENIZERS[name].whitespace == "keep" else " ".join(text.split())
        np.testing.assert_array_equal(first, tokenizer.encode_batch([whole])[0])
    loaded = Config(name, vocab_file=str(ready.directory / "tokenizer"), lowercase=tokenizer.lowercase)
    again = prepare.prepare_corpus(data, loaded, tmp_path / "again").stores["train"]
    np.testing.assert_array_equal(again.take(np.arange(again.tokens)), store.take(np.arange(store.tokens)))


@pytest.mark.parametrize("name", sorted(TOKENIZERS.keys() - {"bytes"}))  # which learn nothing
def test_long_words_are_split_for_training(name, caplog):
    blob = "".join(random.Random(0).choices("abcdefgh", k=14_000))
    texts = ["the being thing " * 20, f"see {blob} there", " " * 10**5 + "x", "an inn"] * 2
    found = tokenizers.train(Config(name, vocab_size=300), lambda: iter(texts))
    assert 64 < found.size <= 300
    assert "4 lines with words of more than 200 characters were split" in caplog.text
