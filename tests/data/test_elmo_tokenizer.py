"""The tokenizer of words with characters."""

import numpy as np
import pytest

from lmrep.data import tokenizers
from lmrep.data.characters import FILL, LENGTH, add_characters
from lmrep.data.tokenized_text import tokenize_words
from lmrep.data.tokenizers import Config

TEXTS = ["the dogs see the <UNK> cat .", "The cat sees  the\tdogs .", "a Caf\u00e9 </S> bar"]
CONFIG = Config(name="elmo", vocab_size=64)
BEGIN, END = 259, 260


def trained(size=64):
    return tokenizers.train(Config(name="elmo", vocab_size=size), lambda: iter(TEXTS))


def reference(word, marks=True):
    """The ids of a word as the released reader gives them, by a loop, plus 1."""
    content = {"<S>": [256], "</S>": [257]}.get(word) if marks else None
    ids = [258, *(list(word.encode("utf8"))[:48] if content is None else content), 259]
    return [i + 1 for i in ids + [260] * (50 - len(ids))]


def test_words_are_sorted_by_frequency_after_the_marks():
    assert trained().tokens == ["<S>", "</S>", "<UNK>", "the", ".", "cat", "dogs", "Caf\u00e9", "The", "a", "bar",
                                "see", "sees"]
    assert trained().vocabulary.specials == {"bos": 0, "eos": 1, "unk": 2}


def test_characters_are_those_of_the_released_reader():
    words = ["a", "Caf\u00e9", "x" * 47, "y" * 48, "z" * 60, "\u00e9" * 30, "<S>", "</S>", "<UNK>"]
    found = trained().characters(words)
    assert found.dtype == np.int32 and found.shape == (len(words), LENGTH)
    assert found.tolist() == [reference(word) for word in words]
    assert found[0, :3].tolist() == [BEGIN, ord("a") + 1, END] and set(found[0, 3:]) == {FILL}


def test_vocabulary_has_the_characters_of_its_words():
    tokenizer = trained()
    assert tokenizer.vocabulary.characters.table.tolist() == [reference(word) for word in tokenizer.tokens]
    assert tokenizers.train(Config(name="words", vocab_size=64), lambda: iter(TEXTS)).vocabulary.characters is None


def test_names_of_marks_in_a_text_are_unknown_words():
    tokenizer, text = trained(), "the <S> <UNK> </S> dog cat"
    the, cat = (tokenizer.tokens.index(word) for word in ("the", "cat"))
    (ids, other), words = tokenizer.encode_known([text, "x the"])
    assert ids.tolist() == [the, 2, 2, 2, 2, cat] and other.tolist() == [2, the]
    assert words == ["<S>", "<UNK>", "</S>", "dog", "x"]
    known = tokenizer.vocabulary.characters.known
    assert known(tokenizer.encode_batch([text])[0]).tolist() == [the, 2, 2, 2, 2, cat]
    assert known(tokenizer.encode(text).ids).tolist() == [the, 2, 2, 2, 2, cat]
    assert known(tokenizer.encode(text, specials=True).ids).tolist() == [the, 0, 2, 1, 2, cat]
    assert tokenizer.encode(text).offsets[1] == (4, 7) and tokenizer.encode(text).words == list(range(6))


def test_ids_keep_the_words_outside_of_the_vocabulary():
    tokenizer, text = trained(), "the dog <S> dog cat zebra"
    ids = tokenizer.encode_batch([text])[0]
    assert ids.dtype == np.int32 and ids[1] == ids[3] >= tokenizer.size and len(set(ids.tolist())) == 5
    np.testing.assert_array_equal(ids, tokenizer.encode(text).ids)
    assert tokenizer.decode(ids) == text
    batch = add_characters({"tokens": np.stack([ids, ids]), "segment_ids": np.array([[1] * 6, [1] * 3 + [0] * 3])},
                           tokenizer.with_counts(np.ones(tokenizer.size, int)).vocabulary)
    assert batch["tokens"].max() < tokenizer.size
    assert batch["characters"][0].tolist() == [reference(word, marks=False) for word in text.split()]
    np.testing.assert_array_equal(batch["characters"][1, :3], batch["characters"][0, :3])
    assert not batch["characters"][1, 3:].any()


TREEBANK = {
    "It doesn't work, he'll say (twice).": "It does n't work , he 'll say ( twice ) .",
    "Mr. Smith of the U.S. paid $1,000.50 at 10:30...": "Mr. Smith of the U.S. paid $ 1,000.50 at 10:30 ...",
    'the "well-known" 20th -- caf\u00e9\u2019s!': 'the " well-known " 20th -- caf\u00e9 \u2019s !',
    "a  b\nst. John": "a b st. John"}


@pytest.mark.parametrize("text", TREEBANK)
def test_words_of_text_are_those_of_the_treebank(text, tmp_path):
    expected = TREEBANK[text].split()
    tokenizer = tokenizers.train(Config(name="elmo_text", vocab_size=64), lambda: iter(TREEBANK))
    encoding = tokenizer.encode(text)
    assert encoding.tokens == expected and [text[a:b] for a, b in encoding.offsets] == expected
    np.testing.assert_array_equal(tokenizer.encode_batch([text])[0], encoding.ids)
    assert [each.tolist() for each in tokenizer.encode_words(["doesn't", "it"])] == [
        tokenizer.encode_words(["doesn't"])[0].tolist(), tokenizer.encode_words(["it"])[0].tolist()]
    assert tokenizer.decode(np.concatenate(tokenizer.encode_words(["doesn't", "twice)."]))) == "doesn't twice)."
    tokenizer.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert loaded.name == "elmo_text" and loaded.fingerprint == tokenizer.fingerprint != trained().fingerprint


@pytest.mark.parametrize("name", ["elmo", "elmo_text"])
def test_pretokenized_words_are_taken_as_they_are(name):
    tokenizer = tokenizers.train(Config(name=name, vocab_size=64), lambda: iter(TEXTS))
    text = tokenize_words(" the  @-@ don't <S> cats.", tokenizer, around=([0], [1]))
    assert text.tokens == ["<S>", "the", "@-@", "don't", "<S>", "cats.", "</S>"]
    assert text.words == [None, 0, 1, 2, 3, 4, None] and text.ids[4] >= tokenizer.size
    assert [text.text[a:b] for a, b in text.word_offsets] == ["the", "@-@", "don't", "<S>", "cats."]


def test_pretokenized_words_of_subword_tokenizers_have_their_tokens():
    tokenizer = tokenizers.train(Config(name="byte_level_bpe", vocab_size=300), lambda: iter(TEXTS))
    text, expected = "the dogs' x", tokenizer.encode(" the dogs' x")
    found = tokenize_words(text, tokenizer, around=([], []))
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert sorted(set(found.words)) == [0, 1, 2]
    assert [text[a:b] for a, b in found.word_offsets] == text.split()


def test_released_vocabulary_is_loaded(tmp_path):
    path = tmp_path / "vocab-2016-09-10.txt"
    path.write_text("</S>\n<S>\n<UNK>\n!!!MAXTERMID\nthe\n,\n")
    tokenizer = tokenizers.from_vocab_file(Config(name="elmo", vocab_file=str(path)))
    assert tokenizer.tokens == ["</S>", "<S>", "<UNK>", "the", ","]
    assert tokenizer.vocabulary.specials == {"bos": 1, "eos": 0, "unk": 2}
    assert tokenizer.vocabulary.characters.table[0].tolist() == reference("</S>")
