"""Tokenizers that give the tokens of a text in reverse order."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare
from lmrep.data.store.tokenize import tokenize
from lmrep.data.tokenized_text import tokenize_text
from lmrep.data.tokenizers import TOKENIZERS, Config
from lmrep.data.tokenizers.backward import backward
from lmrep.inference.perplexity import encode_verbatim
from tests.data.test_tokenizer_properties import LINES, SIZES, trained

READ_FORWARD = sorted(name for name, row in TOKENIZERS.items() if not row.characters)


@pytest.mark.parametrize("name", READ_FORWARD)
def test_ids_are_reversed_and_decode_to_the_text(name, tmp_path):
    forward = trained(name)
    other = backward(forward)
    assert other.fingerprint != forward.fingerprint and not other.published and not forward.backward
    for text in [*LINES[:5], "Was it?\nIt was!", ""]:
        expected, encoding = forward.encode(text), other.encode(text)
        np.testing.assert_array_equal(encoding.ids, expected.ids[::-1])
        np.testing.assert_array_equal(other.encode_batch([text])[0], expected.ids[::-1])
        assert encoding.tokens == expected.tokens[::-1] and encoding.offsets == expected.offsets[::-1]
        assert encoding.words == sorted(encoding.words)
        assert other.decode(encoding.ids) == forward.decode(expected.ids)
    other.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert loaded.backward and loaded.fingerprint == other.fingerprint and loaded.name == name
    with pytest.raises(UserError, match="direction=backward"):
        tokenizers.from_vocab_file(Config(name, vocab_file=str(tmp_path), lowercase=forward.lowercase))
    forward.save(tmp_path / "forward")
    assert tokenizers.from_vocab_file(Config(name, vocab_file=str(tmp_path / "forward"), lowercase=forward.lowercase,
                                             direction="backward")).fingerprint == other.fingerprint


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe", "fastai_v1"])
def test_documents_are_reversed_as_a_whole(name):
    forward, texts = trained(name), ["\n".join(LINES[:3]), LINES[4], "  "]
    keep = TOKENIZERS[name].whitespace == "keep"
    one, other = (tokenize(each, texts, keep, lines=True) for each in (forward, backward(forward)))
    np.testing.assert_array_equal(one.documents, other.documents)
    ends = np.cumsum(one.sentences)[np.cumsum(one.documents) - 1]
    for begin, end in zip([0, *ends], ends, strict=False):
        np.testing.assert_array_equal(other.tokens[begin:end], one.tokens[begin:end][::-1])
    text = " ".join(LINES[:9])
    np.testing.assert_array_equal(encode_verbatim(backward(forward), text, 100),
                                  encode_verbatim(forward, text, 100)[::-1])


def test_words_begin_at_their_last_token():
    forward, flags = trained("wordpiece"), trained("wordpiece").vocabulary
    reverse = backward(forward).vocabulary
    np.testing.assert_array_equal(reverse.ends_word, flags.starts_word)
    assert reverse.starts_word is None and flags.ends_word is None


def test_a_word_of_several_tokens_has_its_characters():
    text = " ".join(LINES[:2])
    one, other = (tokenize_text(text, each) for each in (trained("wordpiece"), backward(trained("wordpiece"))))
    assert len(one.tokens) > len(one.word_offsets) and other.word_offsets == one.word_offsets[::-1]
    assert {text[start:end] for start, end in one.word_offsets} >= {"Caf\u00e9"}


def test_a_corpus_has_a_store_for_each_direction(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n\n".join(LINES * 2))
    data = corpora.Config(corpus="text_files", files=str(tmp_path / "corpus.txt"), validation=0.0, test=0.0)
    one, other = (prepare.prepare_corpus(data, Config("words", SIZES["words"], direction=direction), tmp_path / "data")
                  for direction in ("forward", "backward"))
    assert one.directory != other.directory and one.tokenizer.tokens == other.tokenizer.tokens
    first, last = one.stores["train"], other.stores["train"]
    n = first.sentences[first.documents[1]]
    np.testing.assert_array_equal(first.take(np.arange(n)), last.take(np.arange(n))[::-1])


def test_the_name_of_a_store_that_is_read_forward_does_not_change():
    assert "direction" not in tokenizers.settings_of_ids(Config())
    assert "direction='backward'" in tokenizers.settings_of_ids(Config(direction="backward"))


def test_what_needs_the_order_of_the_text_is_refused():
    with pytest.raises(UserError, match="read both directions"):
        backward(trained("elmo"))
    with pytest.raises(UserError, match="task of whole texts"):
        backward(trained("words")).encode_words(["a"])
