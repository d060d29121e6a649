"""Tokenizers against the reference's own, over files that both load: published ones, ours, and those it saves."""

import itertools
import json
import random
from pathlib import Path

import pytest

from lmrep.data import tokenizers
from lmrep.data.tokenizers import Bpe, ByteLevel, Config, bpe, byte_level
from lmrep.data.tokenizers.byte_level import BYTES
from tests.data import test_bpe, test_byte_level, test_sentencepiece, test_tokenizers

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def texts(parts, number=200):
    """Random strings of these parts."""
    draw = random.Random(0)
    return ["".join(draw.choices(parts, k=draw.randint(1, 30))) for _ in range(number)]


def same(ours, reference, examples):
    """Whether both give these texts equal ids; and say so."""
    assert len(reference) == ours.size
    for text in examples:
        assert ours.encode(text, specials=True).ids.tolist() == reference.encode(text, add_special_tokens=False), text
    return True


def test_bert_tokenizer_from_its_vocabulary_equals_the_reference(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in test_tokenizers.TOKENS))
    ours, reference = tokenizers.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    assert same(ours, reference, [*("a" * n for n in (100, 101, 200, 201)),
                               *texts(["the", "being", "\u00c9", " ", ".", "[MASK]", "\u5927"])])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_bert_vocabulary_with_other_line_breaks_equals_the_reference(tmp_path, end, lowercase):
    """As the Chinese BERT's, which has them, and spaces, as tokens."""
    tokens = [*test_tokenizers.TOKENS, "\u2028", "\u8a9e", "\x85", "##q", "\u00a0", "\u3000", "cafe\u2029", "\u2029",
              "\x1c", "\ufeffa", "last"]
    (tmp_path / "vocab.txt").write_bytes("".join(token + end for token in tokens).encode())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    ours = tokenizers.load(tmp_path)
    reference = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=lowercase)
    assert ours.size == len(tokens) and ours.ids["last"] == reference.convert_tokens_to_ids("last") == len(tokens) - 1
    examples = texts([*tokens, " ", "\u5927", "e", "the", "\n", "\u00e9", "\x0b", "[MASK]"])
    reference.save_pretrained(tmp_path / "reference")
    ours.save(tmp_path / "saved")
    again = transformers.BertTokenizer.from_pretrained(tmp_path / "saved")
    for text in examples:
        ids = reference(text, add_special_tokens=False).input_ids
        assert ours.encode(text, specials=True).ids.tolist() == ids == again(text, add_special_tokens=False).input_ids
    assert tokenizers.load(tmp_path / "saved").fingerprint == ours.fingerprint
    alone = tokenizers.load(tmp_path / "reference")  # tokenizer.json, where one token is on all blank lines
    assert alone.size == ours.size
    for text in examples:
        assert alone.encode(text).ids.tolist() == ours.encode(text).ids.tolist(), text


@pytest.mark.parametrize("source", ["published", "trained"])
def test_gpt_tokenizer_round_trip_equals_the_reference(tmp_path, source):
    if source == "published":
        ours = Bpe(test_bpe.TOKENS, test_bpe.MERGES, specials=bpe.GPT_SPECIALS)
    else:
        ours = tokenizers.train(test_bpe.CONFIG, lambda: iter(test_bpe.CORPUS))
    ours.save(tmp_path / "ours")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(reference) is transformers.OpenAIGPTTokenizer
    examples = texts([*test_bpe.PARTS, *test_bpe.CORPUS[0].split(" ")[:20], "<mask>", "</s>"])
    assert same(ours, reference, examples)
    for text in examples[:50]:
        ids = ours.encode(text).ids.tolist()
        assert "".join(ours.decode(ids).split()) == "".join(reference.decode(ids).split())
    reference.save_pretrained(tmp_path / "reference")
    again = tokenizers.load(tmp_path / "reference")
    assert same(again, reference, examples) and again.fingerprint == ours.fingerprint


def test_saved_gpt2_tokenizer_equals_the_reference(tmp_path):
    tokens = [*BYTES, *("".join(merge) for merge in test_byte_level.MERGES), "<|endoftext|>"]
    ours = ByteLevel(tokens, test_byte_level.MERGES, specials=byte_level.GPT2_SPECIALS)
    ours.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(reference).__name__.startswith("GPT2")
    assert same(ours, reference, texts([*test_byte_level.PARTS, "<|endoftext|>"], 50))


def test_trained_xlnet_tokenizer_equals_the_reference(tmp_path):
    """On the licence, whose marks it must not split otherwise, on hostile characters, and around texts and pairs."""
    lines = [line for line in (ROOT / "LICENSE").read_text().splitlines() if line.strip()]
    ours = tokenizers.train(Config("sentencepiece_xlnet", 500, lowercase=False), lambda: iter(lines))
    ours.save(tmp_path / "ours")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(reference).__name__ == "XLNetTokenizer" and reference.padding_side == "left"
    # Python calls \x1c white space, as the published code does, and Rust does not.
    parts = [part for part in test_sentencepiece.PARTS if part not in ("\x1c", *ours.tokens[:8])]
    mixed = [f'{a}\u201c{b}" (\u00a3{a}-{b}) caf\u00e9' for a, b in itertools.pairwise(lines)]
    assert same(ours, reference, [*lines, *mixed, *texts([*parts, '"', "-", "(a)"])])
    a, b = lines[1], lines[2]
    specials = ours.specials
    found = reference(a, b, return_token_type_ids=True)
    sep, cls = [ours.ids[specials["sep"]]], [ours.ids[specials["cls"]]]
    first, second = ours.encode(a).ids.tolist(), ours.encode(b).ids.tolist()
    assert found.input_ids == first + sep + second + sep + cls
    assert found.token_type_ids == [0] * (len(first) + 1) + [1] * (len(second) + 1) + [2]
    reference.save_pretrained(tmp_path / "reference")
    (tmp_path / "reference" / "spiece.model").write_bytes(ours.model)  # which this version does not write again
    again = tokenizers.load(tmp_path / "reference")
    assert again.fingerprint == ours.fingerprint and again.name == ours.name


@pytest.mark.parametrize("name, make", [
    ("BertTokenizer", lambda: tokenizers.WordPiece(test_tokenizers.TOKENS)),
    ("DistilBertTokenizer", lambda: tokenizers.WordPiece(test_tokenizers.TOKENS)),
    ("ElectraTokenizer", lambda: tokenizers.WordPiece(test_tokenizers.TOKENS)),
    ("RobertaTokenizer", lambda: ByteLevel(test_byte_level.TOKENS, test_byte_level.MERGES)),
    ("GPT2Tokenizer", lambda: ByteLevel([*BYTES, *map("".join, test_byte_level.MERGES), "<|endoftext|>"],
                                        test_byte_level.MERGES, specials=byte_level.GPT2_SPECIALS)),
    ("OpenAIGPTTokenizer", lambda: Bpe(test_bpe.TOKENS, test_bpe.MERGES, specials=bpe.GPT_SPECIALS))])
def test_tokenizer_saved_without_its_vocabulary_equals_the_reference(tmp_path, name, make):
    make().save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    getattr(transformers, name).from_pretrained(tmp_path).save_pretrained(tmp_path / "reference")
    assert sorted(path.name for path in (tmp_path / "reference").iterdir()) == [
        "tokenizer.json", "tokenizer_config.json"]
    reference, ours = (load(tmp_path / "reference") for load in (
        transformers.AutoTokenizer.from_pretrained, tokenizers.load))
    examples = texts([*test_byte_level.PARTS, *test_bpe.PARTS, "[MASK]", " <mask>", "<s>", "<|endoftext|>", "\u00e9"])
    assert same(ours, reference, examples)
    ours.save(tmp_path / "saved")
    assert same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "saved"), examples)
    assert tokenizers.load(tmp_path / "saved").fingerprint == ours.fingerprint


@pytest.mark.parametrize("name, options, parts", [
    ("T5Tokenizer", test_sentencepiece.T5, ["<extra_id_0>", " <extra_id_99> "]),
    ("AlbertTokenizer", test_sentencepiece.ALBERT | {"model_type": "unigram"}, ["[CLS]", "(a)"]),
    ("XLNetTokenizer", "sentencepiece_xlnet", ["<cls>", " <mask>", '"At']),
    ("DebertaV2Tokenizer", test_sentencepiece.DEBERTA, ["[CLS]", " [MASK]", "[UNK]"]),
    ("CamembertTokenizer", {}, ["<s>", " <mask>", "</s>"]),
    ("XLMRobertaTokenizer", {}, ["<s>", " <mask>", "</s>"])])
@pytest.mark.parametrize("extra", [(), ("<new>", " newword")], ids=["", "added tokens"])
def test_tokenizer_saved_without_its_sentencepiece_model_equals_the_reference(tmp_path, name, options, parts, extra):
    """This version of the library saves tokenizer.json alone."""
    if isinstance(options, str):
        model = tokenizers.train(Config(options, 250, lowercase=False), lambda: iter(test_sentencepiece.CORPUS)).model
    else:
        model = test_sentencepiece.model(**options)
    renumbered = name in ("CamembertTokenizer", "XLMRobertaTokenizer")
    file = "sentencepiece.bpe.model" if renumbered else "spm.model" if "Deberta" in name else "spiece.model"
    (tmp_path / file).write_bytes(model)
    made = getattr(transformers, name).from_pretrained(tmp_path)
    if extra:
        made.add_tokens([extra[0]], special_tokens=True)
        made.add_tokens([extra[1]])
    made.save_pretrained(tmp_path / "reference")
    assert not list((tmp_path / "reference").glob("*.model"))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "reference")
    ours = tokenizers.load(tmp_path / "reference")
    parts = [*test_sentencepiece.PARTS, *parts, *extra]
    examples = [*test_sentencepiece.CORPUS[:20], "", "  a\u0301 b\n", *texts(parts)]
    assert same(ours, reference, examples)
    names = {entry["content"] for entry in ours.content["added_tokens"] if entry["special"]}
    for text, ids in zip(examples, ours.encode_batch(examples), strict=True):  # names are ordinary text here
        assert names.isdisjoint({ours.tokens[i] for i in ids} - {"<unk>", "[UNK]"}), text
        if not any(special in text for special in names):
            assert ids.tolist() == ours.encode(text, specials=True).ids.tolist(), text
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(reference) and same(tokenizers.load(tmp_path / "saved"), again, examples)
    assert [again(text).input_ids for text in examples] == [reference(text).input_ids for text in examples]
    assert tokenizers.load(tmp_path / "saved").fingerprint == ours.fingerprint


@pytest.mark.parametrize("name, lowercase", itertools.product(tokenizers.TOKENIZERS, (True, False)))
def test_tokenizers_with_a_published_form_are_those_that_the_reference_reads(tmp_path, name, lowercase):
    if tokenizers.TOKENIZERS[name].lowercase and not lowercase:
        pytest.skip("it always lower-cases")
    corpus = test_sentencepiece.CORPUS
    ours = tokenizers.train(Config(name, 262, lowercase=lowercase), lambda: iter(corpus))
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    try:
        reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
        equal = all(reference(text, add_special_tokens=False).input_ids == ours.encode(text).ids.tolist()
                    for text in corpus)
    except ValueError:
        equal = False
    assert ours.published == equal
    assert not equal or name in tokenizers.PUBLISHED


def test_t5_tokenizer_and_its_sentinels_equal_the_reference(tmp_path):
    (tmp_path / "spiece.model").write_bytes(test_sentencepiece.model(**test_sentencepiece.T5))
    ours = tokenizers.load(tmp_path)
    ours.save(tmp_path / "saved")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(reference).__name__.startswith("T5")
    assert same(ours, reference, [*test_sentencepiece.CORPUS[:50], "a <extra_id_0> bu <extra_id_99>"])
