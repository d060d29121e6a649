"""Byte-level BPE: GPT-2's rules against a plain implementation, readable tokens, deterministic training."""

import itertools
import random
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare, tokenize
from lmrep.data.tokenizers import ByteLevel, Config, library
from lmrep.data.tokenizers.byte_level import BYTES
from lmrep.objectives import masked, masking

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
MERGES = [tuple(line.split()) for line in (
    "Ġ t", "h e", "Ġt he", "i n", "in g", "e r", "' s", "Ġ Ġ", "Ã ©", "å ¤", "å¤ §", "ð Ł", "1 2", "Ġ 1", ". .", "! !",
    "a a", "aa aa")]
TOKENS = [*SPECIALS, *BYTES, *("".join(merge) for merge in MERGES), "madeupword0000", "<mask>"]
PARTS = [
    "the", " the", "being", " ing", "HER", "é", "e\u0301", "大学", "学", "\U0001f600", "\U0001f469\u200d\U0001f467",
    "\0", "\x07", "\x7f", "\u200b", "\ufeff", "\ufffd", "\u00ad", " ", "  ", "     ", "\t", "\n", "\r\n", "\u00a0",
    "\u3000", "\u2028", ".", "..", "!!", "'s", "'S", "'t", "'ll", "’s", "12", " 123", "½", "²", "Ⅷ", "٣", "_", "-",
    "aaaaaaaaa", "ж", "ġ", "Ġ", "ʰ"]


def words(text):
    """GPT-2's words, one rule a line, from its description: the first rule that fits takes all that it can."""
    def run(i, in_type):
        while i < len(text) and in_type(text[i]):
            i += 1
        return i

    letter, digit = (lambda c, first=first: unicodedata.category(c)[0] == first for first in "LN")
    white = str.isspace
    character_types = (letter, digit, lambda c: not (white(c) or letter(c) or digit(c)))
    i = 0
    while i < len(text):
        start = i + (text[i] == " ")
        ends = [run(start, in_type) for in_type in character_types]
        short = next((c for c in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(c, i)), "")
        if short:
            end = i + len(short)
        elif max(ends) > start:
            end = next(end for end in ends if end > start)
        else:  # white space; the last of a run is left to the word after it
            end = run(i, white)
            end -= end < len(text) and end - i > 1
        yield text[i:end]
        i = end


def reference(text):
    """The tokens of a text: of each word's bytes, the pair of the earliest merge is joined until there is none."""
    characters, order = {byte: c for c, byte in BYTES.items()}, {merge: n for n, merge in enumerate(MERGES)}
    tokens = []
    for word in words(text):
        parts = [characters[byte] for byte in word.encode()]
        while True:
            best = min(itertools.pairwise(parts), key=lambda pair: order.get(pair, np.inf), default=None)
            if best not in order:
                break
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = ["".join(best)]
                i += 1
        tokens += parts
    return tokens


@pytest.fixture(scope="module")
def tokenizer():
    return ByteLevel(TOKENS, MERGES)


def test_ids_equal_those_of_a_plain_implementation(tokenizer):
    draw = random.Random(0)
    texts = ["", " ", *("".join(draw.choices(PARTS, k=draw.randint(1, 30))) for _ in range(250))]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.dtype == np.int32
        assert [TOKENS[i] for i in ids] == reference(text), text
        assert tokenizer.encode(text).ids.tolist() == ids.tolist()
        assert tokenizer.decode(ids) == text == "".join(words(text))


def test_tokens_offsets_and_words_match_the_text(tokenizer):
    text = " the her 大学's"
    encoding = tokenizer.encode(text)
    assert encoding.tokens == [" the", " ", "he", "r", " ", "大", "\ufffd", "\ufffd", "\ufffd", "'s"]
    assert [text[start:end] for start, end in encoding.offsets] == ["the", "", "he", "r", "", "大", *["学"] * 3, "'s"]
    assert encoding.words == [0, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    assert tokenizer.decode(encoding.ids) == text
    named = tokenizer.encode("the <mask>", specials=True).tokens
    assert named[-2:] == ["he", "<mask>"]  # the space before it is the mask's


# Words whose pairs of letters tie in frequency, so that the order in which a trainer meets them would show.
CORPUS = [" ".join(f"{a}{b}{c}" for c in "aeiouäж大" for b in "klmnrst" for a in "bdfgpqvwx"), "Was it?\nIt was!"] * 3


@pytest.fixture(scope="module")
def trained():
    return tokenizers.train(Config("byte_level_bpe", vocab_size=400), lambda: iter(CORPUS))


def test_a_trained_vocabulary_starts_with_special_tokens_and_bytes(trained):
    assert trained.tokens[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert set(trained.tokens[5:261]) == set(BYTES) and trained.size == 400 == len(set(trained.tokens))
    assert ["".join(merge) for merge in trained.merges] == trained.tokens[261:]
    for text in [*CORPUS, "".join(PARTS)]:
        ids = trained.encode_batch([text])[0]
        assert trained.decode(ids) == text and not np.isin(ids, range(5)).any()
    assert len(trained.encode(CORPUS[0]).ids) < len(CORPUS[0]) * 0.7  # it merged


def test_other_libraries_can_be_told_to_add_no_token_after_a_text(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    surrounded, ids = Library.from_file(str(tmp_path / "tokenizer.json")), tokenizer.encode("the being").ids.tolist()
    assert surrounded.encode("the being").ids == [0, *ids, 2] and library.start_of_text(tmp_path) is None
    for added in (["<s>"], []):  # the second leaves what is not RoBERTa's any more
        library.remove_end_of_text(tmp_path, added)
        alone = Library.from_file(str(tmp_path / "tokenizer.json"))
        assert library.start_of_text(tmp_path) == ["<s>"]
        assert alone.encode("the being").ids == [0, *ids] and alone.encode("the", "being").tokens.count("</s>") == 2
        assert tokenizers.load(tmp_path).fingerprint == tokenizer.fingerprint
    assert "PreTrainedTokenizerFast" in (tmp_path / "tokenizer_config.json").read_text()


def test_roberta_masks_its_tokens(trained):
    c = masked.Config(rate=0.5, mask=0, keep=0, random=1, count="floor", mask_specials=True,
                      random_specials=False)
    tokens = jnp.array([0, *trained.encode(CORPUS[0]).ids[:61], 2, 1], jnp.int32)
    mask = jax.jit(lambda key: masking.mask_example(
        key, tokens, (tokens != 1).astype(jnp.int32), c=c, vocabulary=trained.vocabulary))
    inputs, predicted, targets, target_mask = map(np.asarray, mask(jax.random.key(0)))
    drawn = inputs[predicted[target_mask]]
    assert len(drawn) >= 31 and not np.isin(drawn, [0, 1, 2, 3]).any() and inputs[-1] == 1
    assert (targets == np.asarray(tokens)[predicted]).all()


CODE = "def f(x):\n    if x:  # Why? Because.\n\n\n        return [x,\n\t  x]\n\nclass A:\n    pass"


@pytest.mark.parametrize("seed", range(2))
def test_white_space_of_documents_is_kept(tokenizer, seed):
    draw = random.Random(seed)
    parts = [*PARTS, *CODE.split(" "), "\n", "\n    ", "\n\n", "Mr. A. ", "Yes! ", "。"]
    texts = [CODE, *("".join(draw.choices(parts, k=draw.randint(1, 60))).strip() for _ in range(50))]
    texts = [text for text in texts if text]
    kept = tokenize.tokenize(tokenizer, texts, keep_whitespace=True)
    documents = np.split(kept.tokens, np.cumsum(np.add.reduceat(kept.sentences, np.cumsum(
        [0, *kept.documents[:-1]])))[:-1])
    assert [tokenizer.decode(ids) for ids in documents] == texts
    assert tokenizer.decode(tokenize.tokenize(tokenizer, [CODE]).tokens) == " ".join(CODE.split())
    ids_of_text = tokenizer.encode_batch([CODE])[0]  # sentence boundaries do not change the tokens
    assert documents[0].tolist() == ids_of_text.tolist()


def test_indentation_is_learned_and_the_setting_changes_the_store(tmp_path):
    (tmp_path / "code.txt").write_text("\n\n\n".join([CODE] * 30))
    data = corpora.Config("text_files", files=str(tmp_path / "code.txt"), documents="file", validation=0, test=0)
    configs = {whitespace: Config("byte_level_bpe", 400, whitespace=whitespace)
               for whitespace in ("auto", "keep", "collapse")}
    ready = {whitespace: prepare.prepare_corpus(data, c, tmp_path / "data") for whitespace, c in configs.items()}
    ids = {name: one.stores["train"].take(np.arange(one.stores["train"].tokens)) for name, one in ready.items()}
    assert ready["auto"].directory == ready["keep"].directory != ready["collapse"].directory
    assert ready["keep"].tokenizer.decode(ids["keep"]) == (tmp_path / "code.txt").read_text()
    assert ready["collapse"].tokenizer.decode(ids["collapse"]) == " ".join((f"{CODE} " * 30).split())
    assert any(token.startswith("\n   ") for token in map(ready["keep"].tokenizer.id_to_token, ids["keep"].tolist()))
