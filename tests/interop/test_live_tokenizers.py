"""Tokenizers against the reference's own, over files that both load: published ones, ours, and those it saves."""

import random

import pytest

from lmrep.data import tokenizers
from lmrep.data.tokenizers import Bpe, ByteLevel, bpe, byte_level
from lmrep.data.tokenizers.byte_level import BYTES
from tests.data import test_bpe, test_byte_level, test_sentencepiece, test_tokenizers

transformers = pytest.importorskip("transformers")


def texts(parts, number=200):
    """Random strings of these parts."""
    draw = random.Random(0)
    return ["".join(draw.choices(parts, k=draw.randint(1, 30))) for _ in range(number)]


def same(ours, theirs, given):
    """Whether both give these texts equal ids; and say so."""
    assert len(theirs) == ours.size
    for text in given:
        assert ours.encode(text, specials=True).ids.tolist() == theirs.encode(text, add_special_tokens=False), text
    return True


def test_bert_tokenizer_from_its_vocabulary_equals_the_reference(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in test_tokenizers.TOKENS))
    ours, theirs = tokenizers.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    assert same(ours, theirs, [*("a" * n for n in (100, 101, 200, 201)),
                               *texts(["the", "being", "\u00c9", " ", ".", "[MASK]", "\u5927"])])


@pytest.mark.parametrize("kind", ["published", "trained"])
def test_gpt_tokenizer_round_trip_equals_the_reference(tmp_path, kind):
    if kind == "published":
        ours = Bpe(test_bpe.TOKENS, test_bpe.MERGES, specials=bpe.GPT_SPECIALS)
    else:
        ours = tokenizers.train(test_bpe.CONFIG, lambda: iter(test_bpe.CORPUS))
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(theirs) is transformers.OpenAIGPTTokenizer
    given = texts([*test_bpe.PARTS, *test_bpe.CORPUS[0].split(" ")[:20], "<mask>", "</s>"])
    assert same(ours, theirs, given)
    for text in given[:50]:
        ids = ours.encode(text).ids.tolist()
        assert "".join(ours.decode(ids).split()) == "".join(theirs.decode(ids).split())
    theirs.save_pretrained(tmp_path / "theirs")
    again = tokenizers.load(tmp_path / "theirs")
    assert same(again, theirs, given) and again.fingerprint == ours.fingerprint


def test_saved_gpt2_tokenizer_equals_the_reference(tmp_path):
    pieces = [*BYTES, *("".join(merge) for merge in test_byte_level.MERGES), "<|endoftext|>"]
    ours = ByteLevel(pieces, test_byte_level.MERGES, specials=byte_level.GPT2_SPECIALS)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("GPT2")
    assert same(ours, theirs, texts([*test_byte_level.PARTS, "<|endoftext|>"], 50))


def test_t5_tokenizer_and_its_sentinels_equal_the_reference(tmp_path):
    (tmp_path / "spiece.model").write_bytes(test_sentencepiece.model(**test_sentencepiece.T5))
    ours = tokenizers.load(tmp_path)
    ours.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(theirs).__name__.startswith("T5")
    assert same(ours, theirs, [*test_sentencepiece.CORPUS[:50], "a <extra_id_0> bu <extra_id_99>"])
