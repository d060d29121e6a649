"""SentencePiece: the library's own ids, ALBERT's and XLNet's cleaning, published models."""

import io
import itertools
import json
import os
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece

from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import AddedToken, Config, SentencePiece
from lmrep.data.tokenizers.sentence_piece import SPECIALS, Cleaning
from tests.data.sentencepiece_texts import CORPUS, NAMES, PARTS, cleaned, texts


def model(**options):
    """The bytes of a model that the library trains, by default with T5's, the others' or a paper's special tokens."""
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model_file, minloglevel=3, **{"vocab_size": 260} | options)
    return model_file.getvalue()


# Models with pieces such as "2010,", as theirs have.
WITH_COMMAS = {"model_type": "bpe", "split_by_unicode_script": False, "split_by_number": False}
XLNET = WITH_COMMAS | {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]}
ALBERT = WITH_COMMAS | {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "user_defined_symbols": ["(", ")"],
                        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
           "eos_piece": "[SEP]", "unk_piece": "[UNK]"}  # [MASK] follows
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@pytest.fixture(scope="module", params=itertools.product(NAMES, (True, False)), ids=str)
def trained(request):
    algorithm, lowercase = request.param
    return tokenizers.train(Config(algorithm, 250, lowercase=lowercase), lambda: iter(CORPUS))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Directories with a model and nothing else, as their papers' would be."""
    home = tmp_path_factory.mktemp("published")
    for name, options in {"albert": ALBERT, "xlnet": XLNET, "t5": T5, "plain": {}}.items():
        (home / name).mkdir()
        (home / name / "spiece.model").write_bytes(model(**options))
    (home / "deberta").mkdir()
    (home / "deberta" / "spm.model").write_bytes(model(**DEBERTA))
    (home / "deberta" / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    (home / "deberta" / "config.json").write_text('{"model_type": "deberta-v2"}')
    (home / "bytes").mkdir()
    (home / "bytes" / "tokenizer.model").write_bytes(
        model(model_type="bpe", byte_fallback=True, vocab_size=400, user_defined_symbols=["<mask>"]))
    return home


def reference(path, text, cleaning):
    """The ids of a text, by the library itself; with cleaning, a number's comma is cut off."""
    machine = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = []
    for piece in machine.encode(cleaned(text, *cleaning) if cleaning else text, out_type=str):
        parts = [piece]
        if cleaning and re.search(r"\d,$", piece):
            parts = machine.encode(piece[:-1].replace("\u2581", ""), out_type=str)
            if not piece.startswith("\u2581"):
                parts[0] = parts[0].removeprefix("\u2581")
            parts = [*filter(None, parts), ","]
        pieces += parts
    return [machine.piece_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("name, cleaning", [
    ("albert", (True,)), ("xlnet", (False,)), ("t5", None), ("deberta", None), ("plain", None), ("bytes", None)])
def test_published_models_give_the_ids_of_the_library(published, name, cleaning):
    tokenizer = tokenizers.load(published / name)
    path = next((published / name).glob("*.model"))
    examples = texts(name)
    for text, ids in zip(examples, tokenizer.encode_batch(examples), strict=True):
        assert ids.dtype == np.int32 and ids.tolist() == reference(path, text, cleaning), repr(text)
        assert tokenizer.encode(text).ids.tolist() == ids.tolist(), repr(text)


def test_a_model_alone_identifies_its_family(published):
    specials = {name: tokenizers.load(published / name).specials for name in ("albert", "xlnet", "t5", "plain")}
    assert specials["albert"] == SPECIALS
    assert {"cls": "<cls>", "sep": "<sep>", "pad": "<pad>", "mask": "<mask>", "bos": "<s>"}.items() <= \
        specials["xlnet"].items()
    assert specials["t5"] == {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
    assert specials["plain"] == {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
    t5 = tokenizers.load(published / "t5")
    assert t5.size == 360 and t5.id_to_token(359) == "<extra_id_0>" and t5.id_to_token(260) == "<extra_id_99>"
    named = t5.encode("a <extra_id_0> b<extra_id_1>.", specials=True).ids
    assert [i for i in named if i >= 260] == [359, 358]
    assert max(t5.encode("a <extra_id_0> b").ids) < 260


def test_debertas_mask_follows_the_pieces(published, tmp_path):
    tokenizer = tokenizers.load(published / "deberta")
    assert tokenizer.vocabulary.specials == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": 260}
    assert tokenizer.size == 261
    assert tokenizer.encode("a [MASK] b", specials=True).ids.tolist().count(260) == 1
    tokenizer.save(tmp_path)
    assert (tmp_path / "spm.model").exists() and tokenizers.load(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer", "split_by_punct": true}')
    with pytest.raises(UserError, match="split_by_punct"):
        tokenizers.load(tmp_path)


def test_commas_are_split_off_numbers_as_in_the_paper(published):
    albert = tokenizers.load(published / "albert")
    assert any(re.search(r"\d,$", piece) for piece in albert.tokens)
    text = "Caf\u00c9 in 2010,"
    encoding = albert.encode(text)
    assert encoding.tokens[-1] == "," and text[slice(*encoding.offsets[-1])] == "," and encoding.words[-1] == 2
    assert albert.decode(encoding.ids) == "cafe in 2010,"
    assert SentencePiece(albert.model, SPECIALS).encode(text).tokens[-1] == " 2010,"


def test_xlnets_vocabulary_has_its_ids_and_cleaning(tmp_path):
    tokenizer = tokenizers.train(Config("sentencepiece_xlnet", 250, lowercase=False), lambda: iter(CORPUS))
    assert tokenizer.tokens[:9] == ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    assert tokenizer.tokens[9:17] == [*'.()"-\u2013\u00a3\u20ac']
    assert tokenizer.vocabulary.specials["eod"] == 7 and not tokenizer.lowercase
    for text in texts(3, 200):
        assert tokenizer.encode(text).ids.tolist() == tokenizer.encode(cleaned(text, False)).ids.tolist()
    tokenizer.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert (loaded.name, loaded.fingerprint) == ("sentencepiece_xlnet", tokenizer.fingerprint)
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizers.load(tmp_path).fingerprint == tokenizer.fingerprint  # recognized by its marks
    with pytest.raises(UserError, match="sentencepiece_xlnet"):
        tokenizers.from_vocab_file(Config("sentencepiece_unigram", vocab_file=str(tmp_path), lowercase=False))


def test_t5s_vocabulary_has_its_ids_and_sentinels(tmp_path):
    tokenizer = tokenizers.train(Config("sentencepiece_t5", 250, lowercase=True), lambda: iter(CORPUS))
    assert tokenizer.size == 250 and tokenizer.tokens[:3] == ["<pad>", "</s>", "<unk>"] and not tokenizer.lowercase
    assert tokenizer.vocabulary.sentinels == tuple(range(249, 149, -1))
    assert [tokenizer.id_to_token(i) for i in (249, 150)] == ["<extra_id_0>", "<extra_id_99>"]
    assert tokenizer.vocabulary.specials == {"pad": 0, "eos": 1, "unk": 2}
    tokenizer.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert (loaded.name, loaded.fingerprint) == ("sentencepiece_t5", tokenizer.fingerprint)
    assert loaded.vocabulary.sentinels == tokenizer.vocabulary.sentinels
    other = tokenizers.train(Config("sentencepiece_unigram", 150, lowercase=False), lambda: iter(CORPUS))
    assert other.vocabulary.sentinels == ()
    with pytest.raises(UserError, match="103 tokens before it learns any"):
        tokenizers.size(Config("sentencepiece_t5", 100))


def test_spans_of_xlnet_start_where_its_code_says():
    tokenizer = tokenizers.train(Config("sentencepiece_xlnet", 250, lowercase=False), lambda: iter(CORPUS))
    marks = set('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
    expected = [piece.startswith(("\u2581", "<")) or piece in marks for piece in tokenizer.tokens]
    np.testing.assert_array_equal(tokenizer.vocabulary.starts_word, expected)
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("cleaning", [Cleaning(True), Cleaning(False), Cleaning(True, True), Cleaning(False, True)])
def test_cleaning_and_its_trace_match_the_description(cleaning):
    for text in texts(7, 700):
        clean, starts, ends = cleaning.trace(text)
        assert clean == cleaning.apply(text) == cleaned(text, cleaning.lowercase, cleaning.keep_accents), repr(text)
        assert len(clean) == len(starts) == len(ends)
        assert all(0 <= a <= b <= len(text) for a, b in zip(starts, ends, strict=True)) and starts == sorted(starts)


def test_offsets_and_words_match_the_text(trained):
    for text in texts(3):
        encoding = trained.encode(text)
        assert len(encoding.ids) == len(encoding.tokens) == len(encoding.offsets) == len(encoding.words)
        assert all(0 <= a <= b <= len(text) for a, b in encoding.offsets), (text, encoding)
        assert encoding.words == sorted(encoding.words) and (not encoding.words or encoding.words[0] == 0)
        spaced = [trained.tokens[i].startswith("\u2581") for i in encoding.ids[1:]]
        assert np.diff(encoding.words).tolist() == spaced
        assert trained.vocabulary.starts_word[encoding.ids[1:]][spaced].all()  # a mask may begin inside of a word too
        covered = {i for a, b in encoding.offsets for i in range(a, b)}
        left = {c for i, c in enumerate(text) if i not in covered and not c.isspace()}
        assert all(unicodedata.category(c)[0] in "CZM" or c in "\u2581\ufffd" for c in left), (text, left)
        if 1 not in encoding.ids:
            again = trained.encode(trained.decode(encoding.ids))
            assert again.ids.tolist() == encoding.ids.tolist(), text
    assert trained.encode("").words == [] and trained.encode_batch([]) == []


def test_names_of_special_tokens_are_ordinary_text_unless_requested(trained):
    text = "[CLS]bu [MASK]. [MASK]ka <pad>"
    requested = trained.encode(text, specials=True)
    assert [(p, text[a:b]) for p, (a, b) in zip(requested.tokens, requested.offsets, strict=True) if p[0] in "[<"] == [
        (name, name) for name in ("[CLS]", "[MASK]", "[MASK]", "<pad>")]
    after = requested.tokens[requested.tokens.index("[MASK]") + 1]
    assert after == "."  # no space stood there
    assert trained.mask_token == "[MASK]" and len(set(requested.words)) == 7
    assert trained.decode(requested.ids) == "[CLS]bu [MASK]. [MASK]ka <pad>"


def test_the_bytes_of_a_character_have_its_offsets(published):
    tokenizer = tokenizers.load(published / "bytes")
    text = "a \U0001f600\u00e6 b"
    encoding = tokenizer.encode(text)
    byte = [text[a:b] for (a, b), piece in zip(encoding.offsets, encoding.tokens, strict=True) if "<0x" in piece]
    assert byte == ["\U0001f600"] * 4 + ["\u00e6"] * 2 and tokenizer.decode(encoding.ids) == text
    assert encoding.words[-1] == 2
    named = SentencePiece(tokenizer.model, {"unk": "<unk>", "mask": "<mask>"})  # which the model finds in every text
    assert named.mask_token not in named.encode("a <mask> b").tokens
    assert named.encode("a <mask> b", specials=True).tokens[1] == "<mask>"
    assert tokenizer.encode("a <mask> b").tokens[2] == "<mask>"


def test_masked_words_are_those_of_albert(published):
    """As its released `_is_start_piece_sp` has it; to others a word ends at white space alone."""
    albert = tokenizers.load(published / "albert")
    marks = set('!"#$%&"()*+,-./:;?@[\\]^_`{|}~')
    expected = [piece.startswith(("\u2581", "<")) or piece in marks or not all(
        c.lower() in marks | set("abcdefghijklmnopqrstuvwxyz") for c in piece) for piece in albert.tokens]
    for name in ("[CLS]", "[SEP]", "[MASK]"):
        expected[albert.tokens.index(name)] = True  # which nothing continues
    assert albert.vocabulary.starts_word.tolist() == expected
    first = dict(zip(albert.tokens, expected, strict=True))
    assert any(first[p] for p in first if p in marks) and any(first[p] for p in first if p.isdigit())
    assert not all(first[p] for p in first if p.isascii() and p.isalpha())
    plain = SentencePiece(albert.model, {"unk": "<unk>"})
    assert not plain.vocabulary.starts_word[[plain.tokens.index(p) for p in first if p in marks]].any()


def test_saved_tokenizer_is_the_same(trained, published, tmp_path):
    albert = tokenizers.load(published / "albert")
    others = [
        SentencePiece(albert.model, SPECIALS | {"cls": "("}, Cleaning(False, True)),
        SentencePiece(albert.model, SPECIALS, None, [AddedToken("<new>", special=True, normalized=False)]),
        SentencePiece(albert.model, {"unk": "<unk>"}),
        *(tokenizers.load(published / name) for name in os.listdir(published))]
    for number, own in enumerate([trained, *others]):
        own.save(tmp_path / str(number))
        file = "spm.model" if own.specials["unk"] == "[UNK]" else "spiece.model"
        assert sorted(os.listdir(tmp_path / str(number))) == [file, "tokenizer_config.json"]
        again = tokenizers.load(tmp_path / str(number))
        assert again.fingerprint == own.fingerprint and again.specials == own.specials and again.name == own.name
        assert again.cleaning == own.cleaning and again.added == own.added
        text = f"In 2010, Caf\u00e9 {own.specials.get('mask', '')} ."
        assert again.encode(text, specials=True).ids.tolist() == own.encode(text, specials=True).ids.tolist()
    assert trained.fingerprint not in {tokenizers.load(published / name).fingerprint for name in os.listdir(published)}


def config(directory, **facts):
    (directory / "tokenizer_config.json").write_text(json.dumps(facts))
    return directory


def copied(published, name, directory, file="spiece.model"):
    (directory / file).write_bytes((published / name / "spiece.model").read_bytes())
    return directory


def test_a_model_or_its_directory_is_accepted(published, tmp_path):
    copied(published, "plain", tmp_path, "sentencepiece.bpe.model")
    for name in ("", "sentencepiece.bpe.model"):
        requested = Config(NAMES[0], vocab_file=str(tmp_path / name), lowercase=False)
        assert tokenizers.from_vocab_file(requested).size == 260 == tokenizers.size(requested)
    for wrong, message in ((Config(NAMES[0], vocab_file=str(tmp_path)), "set --config.tokenizer.lowercase=False"),
                           (Config(NAMES[1], vocab_file=str(tmp_path)), f"set --config.tokenizer.name={NAMES[0]}"),
                           (Config(vocab_file=str(tmp_path / name)), f"set --config.tokenizer.name={NAMES[0]}")):
        with pytest.raises(UserError, match=message):
            tokenizers.from_vocab_file(wrong)


def test_files_beside_a_model_set_its_options(published, tmp_path):
    copied(published, "albert", tmp_path)
    config(tmp_path, tokenizer_class="AlbertTokenizer", do_lower_case=False, keep_accents=True, bos_token="[CLS]")
    tokenizer = tokenizers.load(tmp_path)
    assert tokenizer.cleaning == Cleaning(False, True) and tokenizer.specials == SPECIALS
    config(tmp_path, tokenizer_class="T5TokenizerFast", extra_ids=2, mask_token="(", eos_token=None,
           added_tokens_decoder={"0": {"content": "<pad>"}, "262": {"content": "<new>", "special": True}})
    (tmp_path / "config.json").write_text('{"model_type": "xlnet"}')
    with pytest.raises(UserError, match="</s> is not among its 263 pieces"):
        tokenizers.load(tmp_path)
    config(tmp_path, eos_token="[SEP]", sep_token=")")
    with pytest.raises(UserError, match="<cls>, <eod>, <mask>, <s> is not among"):
        tokenizers.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    tokenizer = tokenizers.load(config(tmp_path, eos_token="[SEP]", extra_ids=1, mask_token={"content": ")"}))
    assert tokenizer.size == 261 and tokenizer.specials["eos"] == "[SEP]" and tokenizer.mask_token == ")"
    assert ")" not in tokenizer.encode("a )").tokens and ")" in tokenizer.encode("a )", specials=True).tokens


def test_malformed_models_are_refused(published, tmp_path):
    intact = (published / "plain" / "spiece.model").read_bytes()
    draw = random.Random(0)
    damaged = [b"", b"abc", b"\n\x0e\n\x05\xff\xfe", b"\0" * 100, intact[:-9], intact[:999], b"\x0a\x00", intact * 2,
               model(model_type="char", vocab_size=60, hard_vocab_limit=False)]
    for number in range(40):
        flipped = bytearray(intact)
        flipped[draw.randrange(len(intact) if number % 2 else 6000)] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    refused = 0
    for content in damaged:
        (tmp_path / "spiece.model").write_bytes(content)
        try:
            tokenizer = tokenizers.load(tmp_path)
            [tokenizer.encode(text, specials=True) for text in PARTS]
        except UserError as error:
            assert str(tmp_path) in str(error)
            refused += 1
    assert refused >= 9
    for content in damaged[:9]:
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(UserError, match=r"not a SentencePiece model|algorithm char"):
            tokenizers.load(tmp_path)
