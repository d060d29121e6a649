"""Tokenizers that leave out the words outside of the vocabulary."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare
from lmrep.data.tokenized_text import tokenize_text, tokenize_words
from lmrep.data.tokenizers import TOKENIZERS, Config
from lmrep.data.tokenizers.backward import backward
from lmrep.data.tokenizers.known_words import without_unknown
from lmrep.tasks.answers import tokens_of
from tests.data.test_tokenizer_properties import LINES, trained

TEXTS = ["zyx " + LINES[0], LINES[1] + " zyx, \u2603!", "zyx", "", " ".join(LINES[:3])]
REMOVE = ["wordpiece", "words", "words_text", "sentencepiece_unigram"]


@pytest.mark.parametrize("name", REMOVE)
def test_tokens_are_those_of_the_tokenizer_but_unknown_ones(name, tmp_path):
    full = trained(name)
    short, unknown, removed = without_unknown(full), full.vocabulary.unknown, 0
    for text in TEXTS:
        encoding, expected = short.encode(text), full.encode(text)
        known = np.flatnonzero(expected.ids != unknown)
        removed += len(expected.ids) - len(known)
        np.testing.assert_array_equal(encoding.ids, expected.ids[known])
        np.testing.assert_array_equal(short.encode_batch([text])[0], expected.ids[known])
        for field in ("tokens", "offsets", "words"):
            assert getattr(encoding, field) == [getattr(expected, field)[i] for i in known]
        reverse = backward(short)
        np.testing.assert_array_equal(reverse.encode_batch([text])[0], encoding.ids[::-1])
        assert all(text[start:end] for start, end in tokenize_text(text, short).word_offsets)
    assert removed > 3 and len({full.fingerprint, short.fingerprint, reverse.fingerprint}) == 3
    for saved in (short, reverse):
        saved.save(tmp_path / type(saved).__name__)
        assert tokenizers.load(tmp_path / type(saved).__name__).fingerprint == saved.fingerprint


def test_a_config_chooses_what_is_done_with_unknown_words(tmp_path):
    full = trained("words")
    full.save(tmp_path / "full")
    without_unknown(full).save(tmp_path / "short")
    keep, remove = ({name: Config("words", vocab_file=str(tmp_path / name), unknown=unknown)
                     for name in ("full", "short")} for unknown in ("keep", "remove"))
    assert tokenizers.from_vocab_file(keep["full"]).fingerprint == full.fingerprint
    assert (tokenizers.from_vocab_file(remove["full"]).fingerprint
            == tokenizers.from_vocab_file(remove["short"]).fingerprint != full.fingerprint)
    with pytest.raises(UserError, match="unknown=remove"):
        tokenizers.from_vocab_file(keep["short"])
    assert "unknown" not in tokenizers.settings_of_ids(Config())
    assert "unknown='remove'" in tokenizers.settings_of_ids(Config(unknown="remove"))


def test_a_corpus_has_a_store_of_known_words(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join([*LINES * 2, "zyx zyx"]))
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "corpus.txt"), validation=0.0, test=0.0)
    full, short = (prepare.prepare_corpus(data, Config("words", 64, unknown=unknown), tmp_path / "data")
                   for unknown in ("keep", "remove"))
    assert full.directory != short.directory and full.tokenizer.tokens == short.tokenizer.tokens
    tokens, kept = (store.take(np.arange(store.sentences[-1]))
                    for store in (each.stores["train"] for each in (full, short)))
    assert 0 < len(kept) < len(tokens)
    np.testing.assert_array_equal(kept, tokens[tokens != full.tokenizer.vocabulary.unknown])
    assert len(full.stores["train"].documents) - len(short.stores["train"].documents) == 1  # it had no known word


@pytest.mark.parametrize("name", sorted({*TOKENIZERS} - {*REMOVE}))
def test_tokenizers_are_refused_or_have_an_unknown_token(name):
    full = trained(name)
    if full.characters or full.vocabulary.unknown < 0:
        with pytest.raises(UserError, match="unknown=keep"):
            without_unknown(full)
    else:
        assert without_unknown(full).encode(LINES[0]).tokens == [
            token for token in full.encode(LINES[0]).tokens if token != full.specials["unk"]]


@pytest.mark.parametrize("read", [
    lambda tokenizer: tokenize_words("a zyx", tokenizer), lambda tokenizer: tokens_of("a zyx", tokenizer, "here")])
def test_what_needs_a_token_for_each_word_is_refused(read):
    with pytest.raises(UserError, match="unknown=keep"):
        read(without_unknown(trained("words")))
