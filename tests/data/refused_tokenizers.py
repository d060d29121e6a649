"""Published tokenizers that are refused: id -> what is changed in intact files, and what the message must name."""

import base64
import json

from lmrep.data import tokenizers
from lmrep.data.tokenizers import SPECIALS, Bpe, ByteLevel, WordPiece, bpe
from tests.data import test_sentencepiece as spiece
from tests.data import test_unigram as unigram
from tests.data.test_published_tokenizers import (
    ENDING,
    GPT,
    GPT2,
    LINES,
    MERGES,
    TOKENS,
    WORDS,
    edited,
    ids,
    put,
    saved,
    write,
)

FAMILIES = {"wordpiece": lambda: WordPiece(WORDS), "byte_level": lambda: ByteLevel(TOKENS, MERGES),
            "bpe": lambda: Bpe(GPT, ENDING, specials=bpe.GPT_SPECIALS),
            "words": lambda: tokenizers.train(tokenizers.Config("words", 64, lowercase=False), lambda: iter(["The"]))}


def damaged(content):
    table = bytearray(unigram.FACTS.characters)
    table[-3] = 0xFF
    content["normalizer"]["precompiled_charsmap"] = base64.b64encode(bytes(table)).decode()


def ordinary_between(content):
    """An added token that is not special between two that are."""
    content["added_tokens"] += [unigram.added(262, "one", False), unigram.added(263, "<two>"),
                                unigram.added(264, "three", False)]


UNIGRAM = {"type": "Unigram", "vocab": [["a", 0.0]]}
JSON = {  # family: changes of its tokenizer.json
    "wordpiece": [
        (put("normalizer", {"type": "NFKC"}), "normalizer", "NFKC"),
        (put("normalizer", "strip_accents", False), "strip_accents"),
        (put("normalizer", "handle_chinese_chars", False), "handle_chinese_chars"),
        (put("normalizer", "lowercase", "yes"), "lowercase", "yes"),
        (put("pre_tokenizer", {"type": "Metaspace"}), "pre_tokenizer", "Metaspace"),
        (put("model", "continuing_subword_prefix", "@@"), "continuing_subword_prefix", "@@"),
        (put("model", UNIGRAM), "unk_id"),
        (put("model", UNIGRAM | {"unk_id": 0}), "normalizer", "BertNormalizer"),
        (put("model", "vocab", "the", 10**15), "1000000000000000"),
        (put("model", "vocab", "the", True), "'the'", "True"),
        (put("model", "vocab", "[MASK]", 3), "id"),
        (put("model", "max_input_chars_per_word", -1), "max_input_chars_per_word", "-1"),
        (put("added_tokens", [{"id": 1}]), "added_tokens"),
        (put("added_tokens", [{"id": 77, "content": "far"}]), "'far'", "77"),
        (put("added_tokens", [{"id": 2, "content": "the"}]), "'the'", "id 2", "id 5"),
        (put("added_tokens", [{"id": len(WORDS), "content": "two\nlines"}]), "lines")],
    "byte_level": [
        (put("model", "merges", [["h ", "e"]]), "merge 1"),
        (put("normalizer", {"type": "Lowercase"}), "normalizer", "Lowercase"),
        (put("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}), "pre_tokenizer", "Sequence"),
        (put("pre_tokenizer", "add_prefix_space", True), "add_prefix_space"),
        (put("pre_tokenizer", "use_regex", False), "use_regex"),
        (put("model", "dropout", 0.1), "dropout", "0.1"),
        (put("model", "ignore_merges", True), "ignore_merges"),
        (put("model", "merges", ["h e", "h e l"]), "merge 2", "'h e l'"),
        (put("model", "merges", [["h", 3]]), "merge 1"),
        (put("model", "merges", [["z", "q"]]), "'zq'"),
        (put("model", "vocab", {"a": 0}), "'<s>'", "id 0")],
    "bpe": [
        (put("normalizer", None), "normalizer"),
        (put("normalizer", "lowercase", False), "lowercase"),
        (put("normalizer", "strip_accents", False), "strip_accents"),
        (put("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer", "Whitespace"),
        (put("model", "type", "Unigram"), "Unigram", "vocab"),
        (put("model", "end_of_word_suffix", "@"), "end_of_word_suffix", "@"),
        (put("model", "continuing_subword_prefix", "##"), "continuing_subword_prefix", "##"),
        (put("model", "unk_token", "e"), "unk_token"),
        (put("model", "dropout", 0.1), "dropout", "0.1"),
        (put("model", "merges", [["a", "</w>"]]), "'</w>'")],
    "words": [
        (put("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer", "Whitespace"),
        (put("normalizer", None), "normalizer"),
        (put("normalizer", {"type": "BertNormalizer", "handle_chinese_chars": False, "lowercase": None}), "lowercase")],
    "unigram": [
        (put("model", "vocab", {"a": 0}), "vocab"),
        (put("model", "vocab", [["a", "b"]]), "entry 0", "vocab"),
        (put("model", "vocab", 3, ["a", float("nan")]), "tokenizer.json"),
        (put("model", "vocab", 3, ["<pad>", 0.0]), "'<pad>'"),
        (put("model", "unk_id", 10**9), "unk_id", "1000000000"),
        (put("model", "unk_id", True), "unk_id", "True"),
        (put("normalizer", {"type": "Sequence", "normalizers": [{"type": "BertNormalizer"}]}), "BertNormalizer"),
        (put("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}), "pattern"),
        (put("normalizer", "precompiled_charsmap", "AAAA"), "charsmap"),
        (put("normalizer", "precompiled_charsmap", 3), "charsmap"),
        (damaged, "charsmap"),
        (put("pre_tokenizer", None), "Metaspace"),
        (put("pre_tokenizer", {"type": "ByteLevel"}), "pre_tokenizer", "ByteLevel"),
        (put("pre_tokenizer", {"type": "Metaspace", "replacement": "_"}), "replacement", "Metaspace"),
        (put("decoder", {"type": "?"}), "tokenizer.json"),
        (put("added_tokens", [unigram.added(3, "far")]), "id"),
        (ordinary_between, "special tokens")]}


def load_changed(directory, family, change):
    """Loads the tokenizer.json of a family after the change."""
    if family == "unigram":
        content = unigram.facts()
        change(content)
        return tokenizers.load(unigram.write(directory, content))
    return tokenizers.load(edited(saved(FAMILIES[family](), directory, "tokenizer.json"), change))


BERT, ROBERTA = {"vocab_txt": WORDS}, {"vocab_json": ids(TOKENS), "merges_txt": LINES}
ENDINGS = {"vocab_json": ids(GPT), "merges_txt": [*map(" ".join, ENDING)]}
FAIRSEQ = {"encoder_json": ids(GPT2), "vocab_bpe": LINES}
DIRECTORIES = [  # files, and what the message must name
    ({}, "vocab.txt"),
    ({"tokenizer_json": []}, "tokenizer.json"),
    ({"tokenizer_json": ["[" * 100_000]}, "tokenizer.json"),
    ({"tokenizer_json": ['{"a": "\\ud800"}']}, "tokenizer.json"),
    ({"tokenizer_json": ["[1]"]}, "tokenizer.json"),
    (BERT | {"tokenizer_config_json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "BertJapanese"),
    (BERT | {"tokenizer_config_json": {"do_lower_case": "no"}}, "do_lower_case"),
    (BERT | {"tokenizer_config_json": {"tokenize_chinese_chars": False}}, "tokenize_chinese_chars"),
    (BERT | {"special_tokens_map_json": {"mask_token": 3}}, "mask_token"),
    (BERT | {"special_tokens_map_json": {"mask_token": "T"}, "tokenizer_config_json": {"mask_token": "[MASK]"}},
     "'T'", "special_tokens_map.json"),
    (BERT | {"added_tokens_json": {"[MASK]": 4, "[NEW]": 12}}, "'[NEW]'"),
    ({"vocab_txt": [*SPECIALS.values(), "a", "The", "In", "An"]}, "do_lower_case"),
    ({"vocab_json": ids(TOKENS)}, "vocab"),
    ({"vocab_json": ids(TOKENS), "merges_txt": []}, "merges.txt"),
    ({"vocab_json": ids(GPT2[:-1]), "merges_txt": LINES}, "<s>, <pad>, </s>, <unk>, <mask>"),
    ({"vocab_json": ids(GPT2), "merges_txt": LINES, "special_tokens_map_json": {"pad_token": "<p>"}}, "<p>"),
    (ROBERTA | {"merges_txt": [*LINES, "a b c"]}, "merge 5", "'a b c'"),
    (ROBERTA | {"tokenizer_config_json": {"add_prefix_space": True}}, "add_prefix_space"),
    (ROBERTA | {"tokenizer_config_json": {"tokenizer_class": "CLIPTokenizer"}}, "CLIPTokenizer"),
    ({"vocab_json": {"a": 0, "b": 0}, "merges_txt": LINES}, "'b'", "id 0"),
    (ENDINGS | {"vocab_json": ids(GPT[1:])}, "<unk>"),
    (ENDINGS | {"tokenizer_config_json": {"do_lower_case": False}}, "do_lower_case"),
    (ENDINGS | {"tokenizer_config_json": {"tokenizer_class": "XLMTokenizer"}}, "XLMTokenizer"),
    (FAIRSEQ | {"dict_txt": ["13"]}, "line 1", "'13'"),
    (FAIRSEQ | {"dict_txt": ["99999 1"]}, "99999"),
    (FAIRSEQ | {"dict_txt": ["1 1", "1 1"]}, "dict.txt"),
    (FAIRSEQ | {"dict_txt": ["1 1"]}, "vocabulary")]
SPIECE = [  # tokenizer_config.json beside ALBERT's model
    ({"tokenizer_class": "XLMRobertaTokenizer"}, "XLMRobertaTokenizer"),
    ({"tokenizer_class": "AlbertTokenizer", "remove_space": False}, "remove_space"),
    ({"tokenizer_class": "AlbertTokenizer", "do_lower_case": "yes"}, "do_lower_case"),
    ({"tokenizer_class": "SentencePiece", "do_lower_case": True}, "do_lower_case"),
    ({"tokenizer_class": "T5Tokenizer", "extra_ids": -1}, "extra_ids"),
    ({"tokenizer_class": "T5TokenizerFast", "extra_ids": 2, "mask_token": "("}, "</s>", "262"),
    ({"added_tokens_decoder": {"999": {"content": "<x>", "special": True}}}, "'<x>'", "999"),
    ({"added_tokens_decoder": {"260": {"content": "x y", "special": False}}}, "'x y'", "260"),
    ({"added_tokens_decoder": [1]}, "added_tokens_decoder"),
    ({"pad_token": 7}, "pad_token")]
VOCABULARIES = {  # tokenizer.name: content of its vocab.txt
    "wordpiece": [
        ([], "vocab.txt"),
        (["[PAD]", "", *WORDS[1:]], "line 2"),
        ([*WORDS, "the"], f"line {len(WORDS) + 1}", "'the'", f"line {WORDS.index('the') + 1}"),
        ([word for word in WORDS if word not in ("[MASK]", "[CLS]")], "[CLS], [MASK]"),
        ([*WORDS, *(f"Name{i}" for i in range(20))], "--config.tokenizer.lowercase=False")],
    "elmo": [
        (["<S>", "</S>", "<UNK>", "the", "cat", "the"], "lines 4 and 6"), (["<S>", "</S>", "the"], "<UNK>"),
        (["<S>", "</S>", "<UNK>", "a b"], "line 4", "'a b'"), (["<S>", "", "</S>", "<UNK>"], "line 2"),
        ([], "vocab.txt")]}


def load_vocabulary(directory, name, lines, file="vocab.txt"):
    """Loads a vocabulary file, of bytes or lines."""
    content = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
    (directory / file).write_bytes(content)
    return tokenizers.from_vocab_file(tokenizers.Config(name, vocab_file=str(directory / file)))


def load_spiece(directory, **facts):
    """Loads a model as ALBERT's with this tokenizer_config.json."""
    (directory / "spiece.model").write_bytes(spiece.model(**spiece.ALBERT))
    (directory / "tokenizer_config.json").write_text(json.dumps(facts))
    return tokenizers.load(directory)


def load_words(directory):
    """Loads cased words with a tokenizer_config.json that says otherwise."""
    return tokenizers.load(edited(saved(FAMILIES["words"](), directory), put("do_lower_case", True),
                                  "tokenizer_config.json"))


def load_unigram(directory):
    """Loads a cased tokenizer.json with a tokenizer_config.json that says otherwise."""
    unigram.write(directory, unigram.facts())
    tokens = {f"{role}_token": "</s>" for role in ("cls", "sep", "mask", "bos", "eos", "pad")}
    return tokenizers.load(write(directory, tokenizer_config_json={"tokenizer_class": "XLNetTokenizer",
                                                                   "do_lower_case": True} | tokens))


def contradicting(directory):
    """Loads a vocab.txt beside a tokenizer.json with other ids."""
    words = [*SPECIALS.values(), "a", "b"]
    saved(WordPiece(words), directory)
    return tokenizers.load(write(directory, vocab_txt=[*words[:-2], "b", "a"]))
