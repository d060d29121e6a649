"""Byte-level BPE of GPT-2 (Radford et al. 2019), with the special tokens of RoBERTa (Liu et al. 2019), of GPT-2, or of
BERT, as in ModernBERT (Warner et al., 2024).

Text is not normalized, unless published files say NFC, as ModernBERT's. It is split into words: 's 't 're 've 'm 'll
'd; runs of letters, of digits or of other characters, each with the space before it; and runs of white space. The UTF-8
bytes of a word, each written as a printable character (`BYTES`; a space is "Ġ"), are then merged pairwise, earliest
merge first. Every text can be encoded, and its ids decode to the same text.

`bytes` has no merge: every byte of the UTF-8 text is a token, as in language models of enwik8 and text8 (Al-Rfou et
al., 2019; Dai et al., 2019). Nothing is learned. The special tokens are ids 0 to 4, and byte i is id 5 + i.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import published
from lmrep.data.tokenizers.base import AddedToken, TokenizerDef, Trained
from lmrep.data.tokenizers.library import BPE_SPECIALS as SPECIALS
from lmrep.data.tokenizers.library import BpeTokenizer
from lmrep.data.tokenizers.published import TOKENIZER_JSON, PublishedFiles, read_lines

GPT2_SPECIALS = {role: "<|endoftext|>" for role in ("bos", "eos", "unk")}
CLASSES = ("Roberta", "GPT2", "Bart", "Longformer")  # tokenizer classes of other libraries with these rules


def _bytes() -> dict[str, int]:
    """Maps printable characters of Latin-1 to their byte, and U+0100 and up to the 68 other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes()  # character of a token -> its byte
SPACE = next(character for character, byte in BYTES.items() if byte == 0x20)


class ByteLevel(BpeTokenizer):
    """The tokenizer of RoBERTa and GPT-2. Its tokens are written in the characters of `BYTES`.

    `mask_absorbs_space`: whether <mask> absorbs the space before it in a text, as in RoBERTa's own code. `nfc`: whether
    text is normalized to NFC first. `one_separator`: whether a pair has one separator between its texts, not two.
    """

    name = "byte_level_bpe"
    rules = "gpt2-1"
    sentence_separator = " "

    def __init__(self, tokens: Sequence[str], merges: Iterable[tuple[str, str]], added: Sequence[AddedToken] = (),
                 specials: Mapping[str, str] = SPECIALS, mask_absorbs_space: bool = True,
                 nfc: bool = False, one_separator: bool = False):
        self.mask_absorbs_space, self.nfc, self.one_separator = mask_absorbs_space, nfc, one_separator
        super().__init__(tokens, merges, added, specials)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the exact text, with special tokens. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._content(i) for i in ids).decode(errors="replace")

    def id_to_token(self, token: int) -> str:
        """Returns the token of an id as text, with its leading space. Incomplete characters become U+FFFD."""
        return self._content(token).decode(errors="replace")

    def _content(self, i: int) -> bytes:
        token = self.tokens[i]
        if token in self.atomic or not BYTES.keys() >= set(token):
            return token.encode()
        return bytes(BYTES[character] for character in token)

    def library_model(self) -> tokenizers.Tokenizer:
        model = models.BPE(self.ids, self.merges, unk_token=self.specials.get("unk"))
        tokenizer = _with_gpt2_words(tokenizers.Tokenizer(model))
        if self.nfc:
            tokenizer.normalizer = normalizers.NFC()
        return tokenizer

    def special_token(self, role: str) -> tokenizers.AddedToken:
        lstrip = role == "mask" and self.mask_absorbs_space
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False, lstrip=lstrip)

    def identity(self) -> list:
        return [*super().identity(), *["mask keeps the space before it"] * (not self.mask_absorbs_space),
                *["NFC"] * self.nfc, *["one separator"] * self.one_separator]

    def template(self) -> processors.PostProcessor | None:
        if not {"sep", "cls"} <= self.specials.keys():
            return None
        sep, cls = ((self.specials[role], self.ids[self.specials[role]]) for role in ("sep", "cls"))
        if self.one_separator:
            return processors.BertProcessing(sep, cls)
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)

    def starts_word(self, token: str) -> bool:
        """Tells whether a space precedes a token. The first token of a text starts a word without one."""
        return token in self.atomic or token.startswith(SPACE)

    def saved_config(self) -> dict:
        if "cls" not in self.specials:
            return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
        if self.one_separator:
            return {"tokenizer_class": "PreTrainedTokenizerFast"}
        return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "bos_token": self.specials["cls"],
                "eos_token": self.specials.get("sep")}


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> ByteLevel:
    """Trains byte-level BPE, cased.

    Ids 0 to 4 are <s> <pad> </s> <unk> <mask> (published vocabularies have <mask> last), followed by the 256 bytes and
    the merges. Ids decide between equally frequent merges; every byte therefore gets its id before training.
    """
    tokenizer = _with_gpt2_words(tokenizers.Tokenizer(models.BPE()))
    return ByteLevel.train(tokenizer, texts(), vocab_size, initial_alphabet=sorted(BYTES),
                           special_tokens=[*SPECIALS.values(), *sorted(BYTES)])


def _with_gpt2_words(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Sets a tokenizer to split text as GPT-2, with offsets that exclude the space before a word."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# Published files


def load(files: PublishedFiles) -> ByteLevel | None:
    """Loads a vocabulary and its merges. With GPT-2's special token and none of RoBERTa's, its special tokens are
    GPT-2's and those that the files name."""
    if files.bpe is None:
        return None
    ids, path = files.bpe, files.vocabulary_path
    if "dict.txt" in files.names and path.name != TOKENIZER_JSON and SPECIALS["mask"] not in ids:
        tokens = _fairseq_tokens(files.directory / "dict.txt", path, published.in_order(path, ids))
        return ByteLevel(tokens, files.merges(tokens))
    normalizer = published.type_name(files.tokenizer_json.get("normalizer"))
    published.check_value(files.directory / TOKENIZER_JSON, "normalizer", normalizer, "none", "NFC")
    files.check_component("pre_tokenizer", "ByteLevel", add_prefix_space=False, use_regex=True)
    files.check_plain_bpe("continuing_subword_prefix", "end_of_word_suffix")
    files.check_config(CLASSES, add_prefix_space=(None, False))
    tokens = files.tokens(ids)
    gpt2 = set(GPT2_SPECIALS.values()) <= set(tokens) and not set(SPECIALS.values()) & set(tokens)
    gpt2 = gpt2 and not {"cls", "sep", "mask"} <= files.specials.keys()
    specials = GPT2_SPECIALS | files.specials if gpt2 else SPECIALS | published.five_specials(files.specials)
    files.check_specials(tokens, specials, "GPT-2's" if gpt2 else "RoBERTa's")
    absorbs = next((bool(entry.get("lstrip")) for entry in files.added_entries()
                    if entry["content"] == specials.get("mask")), True)
    return ByteLevel(tokens, files.merges(tokens), files.added_tokens(specials), specials, absorbs,
                     normalizer == "NFC", _has_one_separator(files.tokenizer_json.get("post_processor")))


def _has_one_separator(post_processor: Any) -> bool:
    """Tells whether a post_processor of tokenizer.json puts one token between the texts of a pair, as BERT's."""
    kind = published.type_name(post_processor)
    if kind == "TemplateProcessing":
        parts = "".join("t" if "SpecialToken" in part else "s" for part in post_processor.get("pair") or [])
        return "sts" in parts
    return kind == "BertProcessing"


def _fairseq_tokens(path: Path, vocab: Path, gpt2: list[str]) -> list[str]:
    """Lists fairseq's tokens: <s> <pad> </s> <unk>, then the lines "GPT-2's-id count" of dict.txt, then <mask>."""
    tokens = [SPECIALS[role] for role in ("cls", "pad", "sep", "unk")]
    for number, line in enumerate(read_lines(path), 1):
        symbol, space, count = line.rpartition(" ")
        if not (space and symbol and count.isdecimal()):
            raise UserError(f"{path}, line {number} is {line[:60]!r}; expected a symbol and its count")
        if symbol.isdecimal() and len(symbol) < 10:
            if int(symbol) >= len(gpt2):
                raise UserError(f"{path}, line {number}: {vocab} has no token {symbol}; expected GPT-2's vocabulary")
            symbol = gpt2[int(symbol)]
        tokens.append(symbol)
    tokens.append(SPECIALS["mask"])
    if len(set(tokens)) != len(tokens):
        raise UserError(f"{path} has a token twice; expected each once")
    return tokens


DEFINITION = TokenizerDef(train, load, ByteLevel.rules, Trained(SPECIALS, len(BYTES)), "keep", lowercase=False)


# Bytes

TOKENS_OF_BYTES = [*SPECIALS.values(), *sorted(BYTES, key=BYTES.__getitem__)]


class Bytes(ByteLevel):
    """Byte-level BPE without a merge: its files are the same as for `byte_level_bpe`."""

    name = "bytes"
    rules = "bytes-1"

    def __init__(self):
        super().__init__(TOKENS_OF_BYTES, ())


def load_bytes(files: PublishedFiles) -> Bytes | None:
    """Loads a vocabulary of the special tokens and the bytes in this order. Raises UserError if it has added tokens."""
    if files.bpe != {token: i for i, token in enumerate(TOKENS_OF_BYTES)}:
        return None
    if added := files.added_tokens(SPECIALS):
        raise UserError(f"{files.directory} adds the token {added[0].content!r} to the bytes; remove it")
    return Bytes()


BYTES_DEFINITION = TokenizerDef(lambda vocab_size, lowercase, texts: Bytes(), load_bytes, Bytes.rules,
                                Trained(SPECIALS, len(BYTES) - 1, size_is_limit=True), "keep", lowercase=False)
