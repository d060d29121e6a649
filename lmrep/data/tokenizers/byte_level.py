"""Byte-level BPE of GPT-2 (Radford et al. 2019), with the special tokens of RoBERTa (Liu et al. 2019) or of GPT-2.

Text is not normalized. It is split into words: 's 't 're 've 'm 'll 'd; runs of letters, of digits or of other
characters, each with the space before it; and runs of white space. The UTF-8 bytes of a word, each written as a
printable character (`BYTES`; a space is "Ġ"), are then merged pairwise, earliest merge first. Every text can be
encoded, and its ids decode to the same text.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import CONFIG, AddedToken, TokenizerDef
from lmrep.data.tokenizers.files import read_lines
from lmrep.data.tokenizers.library import LibraryTokenizer
from lmrep.data.tokenizers.published import (
    TOKENIZER_JSON,
    PublishedFiles,
    check_class,
    check_same_ids,
    check_specials,
    expect,
    expect_plain_bpe,
    expect_value,
    five_specials,
    in_order,
    parse_merges,
    type_name,
)

SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
GPT2_SPECIALS = {role: "<|endoftext|>" for role in ("bos", "eos", "unk")}
RULES = "gpt2-1"
CLASSES = ("Roberta", "GPT2", "Bart", "Longformer")  # tokenizer classes of other libraries with these rules


def _bytes() -> dict[str, int]:
    """Printable bytes of Latin-1 stand for themselves; the 68 others are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes()  # character of a token -> the byte that it stands for
SPACE = next(character for character, byte in BYTES.items() if byte == 0x20)


class ByteLevel(LibraryTokenizer):
    """The tokenizer of RoBERTa and GPT-2.

    Args:
      tokens: the vocabulary with the special tokens, written in the characters of `BYTES`.
      merges: pairs of tokens in the order in which they are merged; each pair forms a token.
      added: tokens that are matched before the text is split into words.
      specials: role -> text.
    """

    name = "byte_level_bpe"
    sentence_separator = " "

    def __init__(self, tokens: Sequence[str], merges: Sequence[tuple[str, str]], added: Sequence[AddedToken] = (),
                 specials: Mapping[str, str] = SPECIALS):
        self.merges = [tuple(merge) for merge in merges]
        super().__init__(tokens, added, specials, SPECIALS)

    def decode(self, ids: Iterable[int]) -> str:
        """The exact text, with special tokens. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._content(i) for i in ids).decode(errors="replace")

    def id_to_token(self, token: int) -> str:
        """The token of an id as text, with its leading space. Incomplete characters become U+FFFD."""
        return self._content(token).decode(errors="replace")

    def _content(self, i: int) -> bytes:
        token = self.tokens[i]
        if token in self._atomic or not BYTES.keys() >= set(token):
            return token.encode()
        return bytes(BYTES[character] for character in token)

    def _model(self) -> tokenizers.Tokenizer:
        model = models.BPE(self._ids, self.merges, unk_token=self.specials.get("unk"))
        return _with_gpt2_words(tokenizers.Tokenizer(model))

    def _special(self, role: str) -> tokenizers.AddedToken:
        """<mask> absorbs the space before it, as in RoBERTa."""
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False, lstrip=role == "mask")

    def _template(self) -> processors.PostProcessor | None:
        if not {"sep", "cls"} <= self.specials.keys():
            return None
        sep, cls = ((self.specials[role], self._ids[self.specials[role]]) for role in ("sep", "cls"))
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)

    def _starts_word(self, token: str) -> bool:
        """Whether a space precedes it. The first token of a text starts a word without one."""
        return token in self._atomic or token.startswith(SPACE)

    def _identity(self) -> list:
        return [RULES, self.tokens, self.merges, *self._renamed_specials()]

    def _config(self) -> dict:
        if "cls" not in self.specials:
            return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
        return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "bos_token": self.specials["cls"],
                "eos_token": self.specials.get("sep")}

    def _save_vocabulary(self, directory: Path) -> None:
        save_bpe(directory, self._ids, self.merges)


def save_bpe(directory: Path, ids: dict[str, int], merges: Iterable[tuple[str, str]]) -> None:
    """Writes vocab.json and merges.txt."""
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (directory / "merges.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf8")


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> ByteLevel:
    """Trains byte-level BPE, cased.

    Ids 0 to 4 are <s> <pad> </s> <unk> <mask> (published vocabularies have <mask> last), followed by the 256 bytes and
    the merges. Ids decide between equally frequent merges; every byte therefore gets its id before training.
    """
    tokenizer = _with_gpt2_words(tokenizers.Tokenizer(models.BPE()))
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False,
        special_tokens=[*SPECIALS.values(), *sorted(BYTES)], initial_alphabet=sorted(BYTES)))
    model = json.loads(tokenizer.to_str())["model"]
    return ByteLevel(sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"])


def _with_gpt2_words(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer, set to split text as GPT-2, with offsets that exclude the space before a word."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# Published files


def load(files: PublishedFiles) -> ByteLevel | None:
    """From a vocabulary and its merges. If it has GPT-2's special token and none of RoBERTa's, it has only that one and
    those that the files name."""
    if files.bpe is None:
        return None
    (ids, merges, source), path = files.bpe, files.directory / files.vocabulary_file
    if "dict.txt" in files.names and path.name != TOKENIZER_JSON and SPECIALS["mask"] not in ids:
        return _load_fairseq(files.directory / "dict.txt", path, in_order(path, ids), merges, source)
    if content := files.tokenizer_json:
        expect_value(path.with_name(TOKENIZER_JSON), "normalizer", type_name(content.get("normalizer")), "none")
        expect(path.with_name(TOKENIZER_JSON), "pre_tokenizer", content.get("pre_tokenizer"), "ByteLevel",
               add_prefix_space=False, use_regex=True)
        expect_plain_bpe(path.with_name(TOKENIZER_JSON), content.get("model"), "continuing_subword_prefix",
                         "end_of_word_suffix")
    check_class(path.with_name(CONFIG), files.config, CLASSES)
    expect_value(path.with_name(CONFIG), "add_prefix_space", files.config.get("add_prefix_space"), None, False)
    check_same_ids(path, ids, files)
    tokens = files.with_added(ids)
    gpt2 = set(GPT2_SPECIALS.values()) <= set(tokens) and not set(SPECIALS.values()) & set(tokens)
    specials = GPT2_SPECIALS | files.specials if gpt2 else SPECIALS | five_specials(files.specials)
    check_specials(path, tokens, specials, "GPT-2's" if gpt2 else "RoBERTa's")
    return ByteLevel(tokens, parse_merges(source, merges, set(tokens)), files.added_tokens(specials), specials)


def _load_fairseq(path: Path, vocab: Path, gpt2: list[str], merges: list, source: Path) -> ByteLevel:
    """fairseq's ids: <s> <pad> </s> <unk>, then the lines "GPT-2's-id count" of dict.txt, then <mask>."""
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
    return ByteLevel(tokens, parse_merges(source, merges, set(tokens)))


DEFINITION = TokenizerDef(train, load, RULES, len(SPECIALS) + len(BYTES), SPECIALS, "keep", lowercase=False)
