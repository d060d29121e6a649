"""Tokenizers: BERT's rules against a plain reading of them, deterministic training, vocabularies that are refused."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers as library

from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import SPECIALS, Config, WordPiece

PIECES = [*SPECIALS.values(), *"abcdefghijklmnopqrstuvwxyz0123456789.,!'()[]-é大学", "##a", "##b", "##e", "##g", "##in",
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


def reference(text, pieces, lowercase):
    return [piece for word in words(text, lowercase) for piece in greedy(word, pieces)]


def greedy(word, pieces):
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in pieces), None)
        if end is None or len(word) > 200:
            return ["[UNK]"]
        found.append(prefix + word[start:end])
        start = end
    return found


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_equal_a_plain_reading_of_the_rules(lowercase):
    draw = random.Random(0)
    parts = ["the", "being", "Banning", "É", "é", "e\u0301", "a\u0308\u0301", "大学", "大", "İ", "ß", "ﬁ",
             "ж", "7", "in", "ing", "\0", "\x07", "\u200b", "\ufeff", "\ufffd",
             "\u00ad", " ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", ".", ",", "!!", "'s", "(in)", "--", "$", "^",
             "`", "“", "…", "\U0001f600", "a" * 50, "x" * 200, "x" * 201]
    texts = ["".join(draw.choices(parts, k=draw.randint(1, 30))) for _ in range(500)]
    tokenizer = WordPiece(PIECES, lowercase)
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert [PIECES[i] for i in ids] == reference(text, set(PIECES), lowercase), text
        assert tokenizer.encode(text).ids.tolist() == ids.tolist()


def test_words_of_up_to_200_characters_are_cut():
    tokenizer = WordPiece([*SPECIALS.values(), "a", "##a"])
    short, long = tokenizer.encode_batch(["a" * 200, "a" * 201])
    assert len(short) == 200 and long.tolist() == [1]


def test_special_tokens_in_a_text_are_ordinary_words_unless_asked_for():
    tokenizer = WordPiece(PIECES)
    plain = ["the", "[", "mask", "]", "."]
    assert tokenizer.encode("The [MASK].").tokens == plain
    assert [PIECES[i] for i in tokenizer.encode_batch(["The [MASK]."])[0]] == plain
    asked = tokenizer.encode("The [MASK].", specials=True)
    assert asked.tokens == ["the", "[MASK]", "."] and asked.ids[1] == tokenizer.vocabulary.specials["mask"]


def test_offsets_point_at_the_characters():
    text = "The  Éing (in)"
    encoding = WordPiece(PIECES).encode(text)
    assert encoding.tokens == ["the", "e", "##ing", "(", "in", ")"]
    assert [text[start:end] for start, end in encoding.offsets] == ["The", "É", "ing", "(", "in", ")"]


def test_decode_reads_like_text():
    tokenizer = WordPiece(PIECES)
    text = "the being's in (an ing), b-s!"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([2, 4, tokenizer.tokens.index("."), 3]) == "[CLS] [MASK]. [SEP]"


def test_vocabulary_describes_the_pieces():
    counts = np.arange(len(PIECES))
    plain = WordPiece(PIECES)
    vocabulary = plain.with_counts(counts).vocabulary
    assert vocabulary.size == len(PIECES) == plain.size
    assert {role: PIECES[i] for role, i in vocabulary.specials.items()} == SPECIALS
    assert vocabulary.starts_word.tolist() == [not piece.startswith("##") for piece in PIECES]
    assert vocabulary.counts.tolist() == counts.tolist() and not plain.vocabulary.counts.any()
    assert plain.id_to_token(7) == PIECES[7]


def test_saved_and_loaded_it_is_the_same_here_and_elsewhere(tmp_path):
    tokenizer = WordPiece(PIECES, lowercase=False)
    tokenizer.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert loaded.tokens == PIECES and loaded.fingerprint == tokenizer.fingerprint and not loaded.lowercase
    elsewhere = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert elsewhere.encode("an É [MASK]").tokens == ["[CLS]", "an", "É", "[MASK]", "[SEP]"]
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert len({t.fingerprint for t in (tokenizer, WordPiece(PIECES), WordPiece(PIECES[:-1], False))}) == 3
    with pytest.raises(UserError, match="no tokenizer"):
        tokenizers.load(tmp_path / "nowhere")


# Words whose pairs of letters tie in frequency, so that the order in which a trainer meets them would show.
CORPUS = [" ".join(f"{a}{b}{c}" for c in "aeiouäж" for b in "klmnrst" for a in "bdfgpqvwx"), "Was it?\nIt was!"] * 3
TRAIN = """
import sys
from lmrep.data.tokenizers import Config, train
texts = sys.stdin.read().split("|")
print(train(Config(vocab_size=150), lambda: iter(texts)).fingerprint)
"""


def test_the_same_corpus_trains_the_same_vocabulary():
    tokenizer, again = (tokenizers.train(Config(vocab_size=150), lambda: iter(CORPUS)) for _ in range(2))
    assert tokenizer.tokens == again.tokens
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    other = subprocess.run([sys.executable, "-c", TRAIN], input="|".join(CORPUS), env=environment, text=True,
                           capture_output=True, check=True).stdout.strip()
    assert tokenizer.fingerprint == other


def test_a_trained_vocabulary_opens_with_the_special_tokens_and_knows_its_corpus():
    tokenizer = tokenizers.train(Config(vocab_size=150), lambda: iter(CORPUS))
    assert tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.size == 150 == len(set(tokenizer.tokens))
    assert not any(np.isin(1, ids) for ids in tokenizer.encode_batch(CORPUS))
    assert "##!" not in tokenizer.tokens and "!" in tokenizer.tokens  # punctuation never continues a word
    assert max(map(len, tokenizer.tokens[5:])) > 3  # it merged
    assert not any(piece != piece.lower() for piece in tokenizer.tokens[5:])
    cased = tokenizers.train(Config(vocab_size=150, lowercase=False), lambda: iter(CORPUS))
    assert "W" in cased.tokens


def write(path, lines, end="\n"):
    path.write_text("\n".join(lines) + end, encoding="utf8")
    return Config(vocab_file=str(path))


def test_a_published_vocabulary_keeps_its_ids(tmp_path):
    pieces = ["[unused]", *PIECES[5:20], *reversed(PIECES[:5]), *PIECES[20:]]
    for end in ("\n", ""):
        tokenizer = tokenizers.from_vocab_file(write(tmp_path / "vocab.txt", pieces, end))
        assert tokenizer.tokens == pieces and tokenizer.vocabulary.specials["mask"] == pieces.index("[MASK]")


@pytest.mark.parametrize("lines, message", [
    ([], "is empty"),
    (["[PAD]", "", *PIECES[1:]], "line 2 is empty"),
    ([*PIECES, "the"], rf"line {len(PIECES) + 1}: 'the' is on line {PIECES.index('the') + 1}"),
    ([p for p in PIECES if p not in ("[MASK]", "[CLS]")], r"\[CLS\], \[MASK\] on none of its"),
    ([*PIECES, *(f"Name{i}" for i in range(20))], "set --config.tokenizer.lowercase=False"),
])
def test_a_wrong_vocabulary_is_refused(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        tokenizers.from_vocab_file(write(tmp_path / "vocab.txt", lines, "\n" if lines else ""))


def test_a_vocabulary_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        tokenizers.from_vocab_file(Config(vocab_file=str(tmp_path / "nowhere.txt")))
    (tmp_path / "spm.model").write_bytes(b"\n\x0e\n\x05\xff\xfe")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        tokenizers.from_vocab_file(Config(vocab_file=str(tmp_path / "spm.model")))
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        tokenizers.from_vocab_file(Config(vocab_file=str(tmp_path / "vocab.txt")))


@pytest.mark.parametrize("name", tokenizers.TOKENIZERS)
def test_words_of_a_megabyte_are_split_to_train(name, caplog):
    blob = "".join(random.Random(0).choices("abcdefgh", k=10**6 if name == "byte_level_bpe" else 2 * 10**4))
    texts = ["the being thing " * 20, f"see {blob} there", " " * 10**6 + "x", "an inn"]
    trained = tokenizers.train(Config(name, vocab_size=300), lambda: iter(texts))
    assert 64 < trained.size <= 300
    assert "2 lines with words of more than 200 characters were split" in caplog.text


def test_long_lines_of_short_words_are_not_split_to_train(caplog):
    texts = ["the being thing " * 1000, "a" * 200 + " " + "b" * 200]
    assert list(map(list, map(tokenizers._split_long_words, texts))) == [[text] for text in texts]
    assert list(tokenizers._split_long_words("an " + "x" * 401 + " inn")) == ["an " + "x" * 200, "x" * 200, "x inn"]
