"""Byte-level BPE, by the rules of GPT-2 (Radford et al. 2019) with the special tokens of RoBERTa (Liu et al. 2019), or
GPT-2's own.

Text is taken as it is and cut into words: 's 't 're 've 'm 'll 'd; runs of letters, of digits, or of other characters,
each with one space before it where there is one; and white space. A word's UTF-8 bytes, each written as a printable
character (`BYTES`; a space is "Ġ"), are then joined two by two, the earliest merge of the list first. Every text has
pieces, and pieces give the text back.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from lmrep.data.tokenizers.base import Added
from lmrep.data.tokenizers.machine import MachineTokenizer

SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
GPT2 = {role: "<|endoftext|>" for role in ("bos", "eos", "unk")}  # its only one
RULES = "gpt2-1"  # names the rules in fingerprints: raise it when a change moves an id or trains another vocabulary
LEAST = len(SPECIALS) + 256  # pieces before any is learned


def _bytes() -> dict[str, int]:
    """The printable bytes of Latin-1 stand for themselves, the 68 others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


BYTES = _bytes()  # character of a piece -> the byte that it stands for
SPACE = next(character for character, byte in BYTES.items() if byte == 0x20)


class ByteLevel(MachineTokenizer):
    """RoBERTa's or GPT-2's tokenizer over its pieces, the special tokens among them.

    Args:
      pieces: id i is piece i, written in the characters of `BYTES`.
      merges: pairs of pieces to be joined, in that order; each joins to a piece.
      added: pieces that are found before words are cut.
      specials: role -> name.
    """

    name, joint = "byte_level_bpe", " "

    def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]], added: Sequence[Added] = (),
                 specials: dict[str, str] = SPECIALS):
        self.merges = [tuple(merge) for merge in merges]
        super().__init__(pieces, added, specials, SPECIALS)

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the pieces are of, special tokens kept. U+FFFD stands where bytes are not UTF-8."""
        return b"".join(self._content(i) for i in ids).decode(errors="replace")

    def id_to_token(self, token: int) -> str:
        """The piece that an id stands for, as text: " the" begins with a space. U+FFFD stands for the bytes of a
        piece that is not whole characters."""
        return self._content(token).decode(errors="replace")

    def _content(self, token: int) -> bytes:
        piece = self.tokens[token]
        if piece in self._own or not BYTES.keys() >= set(piece):
            return piece.encode()
        return bytes(BYTES[character] for character in piece)

    def _rules(self) -> tokenizers.Tokenizer:
        machine = tokenizers.Tokenizer(models.BPE(self._ids, self.merges, unk_token=self.specials.get("unk")))
        return _with_words(machine)

    def _special(self, role: str) -> AddedToken:
        """<mask> takes the space before it, as RoBERTa's."""
        return AddedToken(self.specials[role], special=True, normalized=False, lstrip=role == "mask")

    def _around(self) -> processors.PostProcessor | None:
        if not {"sep", "cls"} <= self.specials.keys():
            return None
        sep, cls = ((self.specials[role], self._ids[self.specials[role]]) for role in ("sep", "cls"))
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)

    def _starts_word(self, piece: str) -> bool:
        """Those with a space before them. What begins a text has none, and is a word's beginning by its place."""
        return piece in self._own or piece.startswith(SPACE)

    def _facts(self) -> list:
        return [RULES, self.tokens, self.merges, *self._named()]

    def _config(self) -> dict:
        if "cls" not in self.specials:
            return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
        return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "bos_token": self.specials["cls"],
                "eos_token": self.specials.get("sep")}

    def _save_pieces(self, directory: Path) -> None:
        save(directory, self._ids, self.merges)


def save(directory: Path, ids: dict[str, int], merges: Iterable[tuple[str, str]]) -> None:
    """Writes a vocab.json and a merges.txt."""
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (directory / "merges.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf8")


def train(vocab_size: int, texts: Callable[[], Iterator[str]]) -> ByteLevel:
    """Trains byte-level BPE on a corpus.

    Ids 0 to 4 are <s> <pad> </s> <unk> <mask> (in published vocabularies <mask> is last), then come the 256 bytes and
    the merges. Ties between merges are broken by ids, and these are fixed: every byte has its own beforehand.
    """
    machine = _with_words(tokenizers.Tokenizer(models.BPE()))
    machine.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False,
        special_tokens=[*SPECIALS.values(), *sorted(BYTES)], initial_alphabet=sorted(BYTES)))
    model = json.loads(machine.to_str())["model"]
    return ByteLevel(sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"])


def _with_words(machine: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The library's tokenizer, with GPT-2's words and with offsets that leave the space before a word out."""
    machine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    machine.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    machine.decoder = decoders.ByteLevel()
    return machine
