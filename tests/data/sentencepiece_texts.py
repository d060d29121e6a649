"""Texts for the tests of SentencePiece."""

import random
import unicodedata

NAMES = ("sentencepiece_unigram", "sentencepiece_bpe")
DRAW = random.Random(0)
LETTERS = ["".join(DRAW.choices("aeioubdfgklmnprst", k=DRAW.randint(1, 7))) for _ in range(300)]
CORPUS = [" ".join([*DRAW.choices(LETTERS, k=9), "in 2010, caf\u00e9 ``1,'' \u5927\u5b66."]) for _ in range(200)]
PARTS = [
    "the", " the", "Being", "caf\u00e9", "e\u0301", " \u0301", "\u5927\u5b66", "\ud55c\uad6d", "\U0001f600",
    "\U0001f469\u200d\U0001f467", "\0", "\x07", "\x1c", "\x7f", "\u200b", "\ufeff", "\ufffd", " ", "  ", "     ", "\t",
    "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85", ".", "..", "``", "''", "'''", "`", "2010,", "\uff11,", "1,2,",
    " 9,000 ", "\u00bd", "\ufb01x", "\u0130", "\u03a3", "\u039f\u03a3 ", "\u1e9e", "\u212b", "\u2581", "\u2585", "<s>",
    "<unk>", "[MASK]", "</s>", "\U0001d4b3", "\u1100\u1161", "x" * 60]


def texts(seed, number=200):
    draw = random.Random(seed)
    return ["", " ", *("".join(draw.choices(PARTS, k=draw.randint(1, 15))) for _ in range(number))]


def cleaned(text, lowercase, keep_accents=False):
    """ALBERT's and XLNet's cleaning, from its description."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.combining(c) == 0)
    return text.lower() if lowercase else text
