"""Tokenizers: BERT's rules against a plain reading of them, deterministic training, vocabularies that are refused."""

import random
import unicodedata

import numpy as np
import pytest

from lmrep.config import record
from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import SPECIALS, Bpe, ByteLevel, Config, WordPiece

TOKENS = [*SPECIALS.values(), *"abcdefghijklmnopqrstuvwxyz0123456789.,!'()[]-é大学", "##a", "##b", "##e", "##g", "##in",
          "##n", "##ing", "##s", "the", "ing", "in", "an", "mask", "B", "É", "##É", "##é"]


def words(text, lowercase):
    """BERT's words, one rule a line, from the description of its tokenizer."""
    category = unicodedata.category
    text = "".join(" " if c in "\t\n\r" or category(c) == "Zs" else c for c in text
                   if c in "\t\n\r" or not (c in "\0\ufffd" or category(c) in ("Cc", "Cf")))
    text = "".join(f" {c} " if 0x4E00 <= ord(c) <= 0x9FFF else c for c in text)
    if lowercase:
        text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if category(c) != "Mn")
    text = "".join(f" {c} " if category(c)[0] == "P" or (c.isascii() and category(c)[0] == "S") else c for c in text)
    return text.split()


def reference(text, vocab, lowercase):
    return [token for word in words(text, lowercase) for token in greedy(word, vocab)]


def greedy(word, vocab):
    tokens, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocab), None)
        if end is None or len(word) > 200:
            return ["[UNK]"]
        tokens.append(prefix + word[start:end])
        start = end
    return tokens


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_equal_those_of_a_plain_implementation(lowercase):
    draw = random.Random(0)
    parts = ["the", "being", "Banning", "É", "é", "e\u0301", "a\u0308\u0301", "大学", "大", "İ", "ß", "ﬁ",
             "ж", "7", "in", "ing", "\0", "\x07", "\u200b", "\ufeff", "\ufffd",
             "\u00ad", " ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", ".", ",", "!!", "'s", "(in)", "--", "$", "^",
             "`", "“", "…", "\U0001f600", "a" * 50, "x" * 200, "x" * 201]
    texts = ["".join(draw.choices(parts, k=draw.randint(1, 30))) for _ in range(250)]
    tokenizer = WordPiece(TOKENS, lowercase)
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert [TOKENS[i] for i in ids] == reference(text, set(TOKENS), lowercase), text
        assert tokenizer.encode(text).ids.tolist() == ids.tolist()


def test_words_of_up_to_200_characters_are_split():
    tokenizer = WordPiece([*SPECIALS.values(), "a", "##a"])
    short, long = tokenizer.encode_batch(["a" * 200, "a" * 201])
    assert len(short) == 200 and long.tolist() == [1]


def test_offsets_point_at_the_characters():
    text = "The  Éing (in)"
    encoding = WordPiece(TOKENS).encode(text)
    assert encoding.tokens == ["the", "e", "##ing", "(", "in", ")"]
    assert [text[start:end] for start, end in encoding.offsets] == ["The", "É", "ing", "(", "in", ")"]


def test_decode_reads_like_text():
    tokenizer = WordPiece(TOKENS)
    text = "the being's in (an ing), b-s!"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([2, 4, tokenizer.tokens.index("."), 3]) == "[CLS] [MASK]. [SEP]"


def test_the_fingerprint_depends_on_case_tokens_and_merges(tmp_path):
    merges = [("a", "b"), ("b", "c")]
    bpe = [(["a", "b", "c", "ab", "bc"], merges), (["a", "b", "c", "ab", "bc"], merges[::-1]),
           (["a", "b", "c", "ab", "bc", "x y"], merges)]
    every = [WordPiece(TOKENS), WordPiece(TOKENS, False), WordPiece(TOKENS[:-1]),
             *(kind(tokens, pairs, specials={"unk": "a"}) for kind in (Bpe, ByteLevel) for tokens, pairs in bpe)]
    assert len({each.fingerprint for each in every}) == len(every)
    with pytest.raises(UserError, match="no tokenizer"):
        tokenizers.load(tmp_path)


# Words whose pairs of letters tie in frequency, so that the order in which a trainer meets them would show.
CORPUS = [" ".join(f"{a}{b}{c}" for c in "aeiouäж" for b in "klmnrst" for a in "bdfgpqvwx"), "Was it?\nIt was!"] * 3


def test_a_trained_vocabulary_starts_with_the_special_tokens_and_covers_its_corpus():
    tokenizer = tokenizers.train(Config(vocab_size=150), lambda: iter(CORPUS))
    assert tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.size == 150 == len(set(tokenizer.tokens))
    assert not any(np.isin(1, ids) for ids in tokenizer.encode_batch(CORPUS))
    assert "##!" not in tokenizer.tokens and "!" in tokenizer.tokens  # punctuation never continues a word
    assert max(map(len, tokenizer.tokens[5:])) > 3  # it merged
    assert not any(token != token.lower() for token in tokenizer.tokens[5:])
    cased = tokenizers.train(Config(vocab_size=150, lowercase=False), lambda: iter(CORPUS))
    assert "W" in cased.tokens


def write(path, lines, end="\n"):
    path.write_text("\n".join(lines) + end, encoding="utf8")
    return Config(vocab_file=str(path))


def test_a_published_vocabulary_keeps_its_ids(tmp_path):
    vocab = ["[unused]", *TOKENS[5:20], *reversed(TOKENS[:5]), *TOKENS[20:]]
    for end in ("\n", ""):
        tokenizer = tokenizers.from_vocab_file(write(tmp_path / "vocab.txt", vocab, end))
        assert tokenizer.tokens == vocab and tokenizer.vocabulary.specials["mask"] == vocab.index("[MASK]")


def test_long_lines_of_short_words_are_not_split_for_training(caplog):
    texts = ["the being thing " * 1000, "a" * 200 + " " + "b" * 200]
    assert list(map(list, map(tokenizers._split_long_words, texts))) == [[text] for text in texts]
    assert list(tokenizers._split_long_words("an " + "x" * 401 + " inn")) == ["an " + "x" * 200, "x" * 200, "x inn"]


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "byte_level_bpe", "words"])
def test_the_largest_size_does_not_abort_the_libraries(name):
    largest = record.read(Config, {"name": name, "vocab_size": tokenizers.MAX_SIZE})
    assert tokenizers.train(largest, lambda: iter(["the being thing " * 20])).size < 300
