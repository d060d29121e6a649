"""GPT's BPE: its rules against a plain reading of them, readable text, words for masks, deterministic training."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.data import tokenizers
from lmrep.data.tokenizers import Bpe, Config, bpe
from lmrep.objectives import masked, masking
from tests.data.test_tokenizers import words

CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!'()[]<>/-大"]
MERGES = [tuple(line.split()) for line in (
    "t h", "th e</w>", "h e</w>", "i n", "in g</w>", "e r</w>", "b e", "a a", "a a</w>", "aa aa", "aa aa</w>",
    "1 2</w>")]
JOINED = ["".join(merge) for merge in MERGES]
TOKENS = ["<unk>", *CHARACTERS, *(f"{c}</w>" for c in CHARACTERS), *JOINED, "\n</w>"]
FIVE = ["<s>", "<pad>", "</s>", *TOKENS[:-1], "<mask>"]
PARTS = [
    "the", " the", "being", " Ing", "HER", "É", "e\u0301", "İ", "ß", "大学", "学", "\U0001f600",
    "\U0001f469\u200d\U0001f467", "\0", "\x07", "\x7f", "\u200b", "\ufeff", "\ufffd", "\u00ad", " ", "     ", "\t",
    "\n", "\r\n", "\u00a0", "\u3000", "\u2028", ".", "..", "!!", "'s", "n't", "—", "“", "…", "12", "½", "_", "-",
    "</w>", "<unk>", "aaaaaaaaa", "a" * 300, "ж", "Ġ"]


def reference(text):
    """The tokens of a text: of each word's characters, the pair of the earliest merge is joined until there is none."""
    order, known = {merge: n for n, merge in enumerate(MERGES)}, set(TOKENS)
    for word in words(text, lowercase=True):
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while (best := min(itertools.pairwise(parts), key=lambda pair: order.get(pair, np.inf), default=None)) in order:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = ["".join(best)]
                i += 1
        yield from (part if part in known else "<unk>" for part in parts)


@pytest.fixture(scope="module")
def tokenizer():
    """As GPT's own files are."""
    return Bpe(TOKENS, MERGES, specials=bpe.GPT_SPECIALS)


def test_ids_equal_those_of_a_plain_implementation(tokenizer):
    draw = random.Random(0)
    texts = ["", " ", *("".join(draw.choices(PARTS, k=draw.randint(1, 30))) for _ in range(250))]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert [TOKENS[i] for i in ids] == list(reference(text)), text
        assert tokenizer.encode(text).ids.tolist() == ids.tolist()


def test_tokens_offsets_and_words_match_the_text(tokenizer):
    text = "The  Hers, é大!"
    encoding = tokenizer.encode(text)
    assert encoding.tokens == ["the ", "h", "e", "r", "s ", ", ", "e ", "大 ", "! "]
    assert [text[start:end] for start, end in encoding.offsets] == ["The", "H", "e", "r", "s", ",", "é", "大", "!"]
    assert encoding.words == [0, 1, 1, 1, 1, 2, 3, 4, 5]


def test_decode_reads_like_text(tokenizer):
    text = "the being's in (her) bed, can't be-in!"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([TOKENS.index(token) for token in ("th", "in", "g</w>", "\n</w>", "the</w>", "<unk>")]) == \
        "thing\nthe <unk>"
    spacy = Bpe([*TOKENS, "n't</w>", "'s</w>"], MERGES, specials=bpe.GPT_SPECIALS)
    assert spacy.decode([TOKENS.index("a"), TOKENS.index("s</w>"), len(TOKENS), TOKENS.index("the</w>"),
                         len(TOKENS) + 1]) == "asn't the's"


def test_full_words_are_masked():
    five = Bpe(FIVE, MERGES)
    encoding = five.encode("hers being thick, a bed (in there) they said")
    first, last = 0, len(FIVE) - 1
    tokens = jnp.array([first, *encoding.ids, FIVE.index("</s>"), 1], jnp.int32)
    starts = jax.jit(lambda: masking.word_starts(tokens, five.vocabulary))()
    expected = [encoding.words.index(word) for word in range(encoding.words[-1] + 1)]
    assert np.flatnonzero(starts[1:-2]).tolist() == expected
    words_of = np.array([-1, *encoding.words, -1, -1])
    c, taken = masked.Config(rate=0.3, mask=1, keep=0, random=0, whole_word=True), set()
    mask = jax.jit(lambda key: masking.mask_example(key, tokens, (tokens != 1).astype(jnp.int32), c=c,
                                               vocabulary=five.vocabulary)[0])
    for seed in range(20):
        hidden = np.asarray(mask(jax.random.key(seed))) == last
        chosen = set(words_of[hidden])
        assert -1 not in chosen and (np.isin(words_of, [*chosen]) == hidden).all()
        taken |= chosen
    assert len(taken) > 6


CORPUS = [" ".join(f"{a}{b}{c}" for c in "aeiouж大" for b in "klmnrst" for a in "bdfgpqvwx"), "Was it?\nIt was!"] * 3
CONFIG = Config("bpe", vocab_size=150)


@pytest.fixture(scope="module")
def trained():
    return tokenizers.train(CONFIG, lambda: iter(CORPUS))


def test_a_trained_vocabulary_starts_with_special_tokens_and_characters(trained, tmp_path):
    assert trained.tokens[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert trained.size == 150 == len(set(trained.tokens))
    letters = trained.tokens[5 : trained.size - len(trained.merges)]
    half = len(letters) // 2
    assert {*letters[:half]} == {*"".join(CORPUS).lower()} - {*" \n"}
    assert letters[half:] == [f"{c}</w>" for c in letters[:half]]
    assert ["".join(merge) for merge in trained.merges] == trained.tokens[5 + 2 * half :] and trained.merges
    assert not any(np.isin(range(5), ids).any() for ids in trained.encode_batch(CORPUS))
    assert trained.decode(trained.encode(CORPUS[1]).ids) == "was it? it was!"
    trained.save(tmp_path)
    assert tokenizers.load(tmp_path).fingerprint == trained.fingerprint
