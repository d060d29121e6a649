"""SentencePiece (Kudo and Richardson 2018): unigram language models of pieces (Kudo 2018) and BPE over raw text.

The `sentencepiece` library does the work. A text is normalised by the model's own rules (NFKC and spaces made one, for
those published), "▁" (U+2581) written for each space and before the text, and cut into pieces: a piece that begins
with "▁" starts a word. Before that, ALBERT and XLNet clean the text (`Cleaning`), and after it cut the comma off a
number ("2010," is "2010" and ","), as the code released with them does and other libraries do not. T5 does neither.
"""

import hashlib
import io
import os
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import spiece_model
from lmrep.data.tokenizers.base import Added, Encoding, Tokenizer

SPACE = "\u2581"
SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}  # ALBERT's; ids 0 to 4
RULES = "spm-1"  # names the rules in fingerprints: raise it when a change moves an id or trains another vocabulary
LEAST = len(SPECIALS)  # pieces before any is learned
COVERAGE = 0.9999  # share of a corpus's characters that get a piece of their own; rarer ones are <unk>
LONGEST_LINE = 1000  # characters that the trainer is given at once; it drops longer lines
SENTINELS = 100  # of T5
MOST = 25 * 10**6  # characters to train on; more are thinned out evenly, for the trainer wants 20 bytes for each
MARKS, LETTERS = frozenset("!\"#$%&()*+,-./:;?@[\\]^_`{|}~"), frozenset(string.ascii_lowercase)  # to ALBERT's masks
THREADS = 16  # of the trainer, on any machine: the order of its sums follows from their number


@dataclass(frozen=True)
class Cleaning:
    """ALBERT's and XLNet's: white space made single spaces, `` and '' made ", the rest as the fields say.

    Attributes:
      lowercase: lower-case it.
      keep_accents: otherwise compatibility characters are decomposed (NFKD) and combining marks dropped.
    """

    lowercase: bool
    keep_accents: bool = False

    def apply(self, text: str) -> str:
        """The clean text."""
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        if not (self.keep_accents or text.isascii()):
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        return text.lower() if self.lowercase else text

    def trace(self, text: str) -> tuple[str, list[int], list[int]]:
        """The clean text, and for each of its characters the first one that it comes from in `text`, and the end of
        them. A dropped mark belongs to the character before it."""
        found: list[tuple[str, int, int]] = []
        before = None
        for word in re.finditer(r"\S+", text):
            if before:
                found.append((" ", before.end(), word.start()))
            before = word
            for unit in re.finditer(r"``|''|.", word[0], re.DOTALL):
                start, end = word.start() + unit.start(), word.start() + unit.end()
                if end - start == 2:
                    found.append(('"', start, end))
                elif self.keep_accents:
                    found.append((unit[0], start, end))
                else:
                    kept = [c for c in unicodedata.normalize("NFKD", unit[0]) if not unicodedata.combining(c)]
                    found += [(c, start, end) for c in kept]
                    if found and not kept:
                        found[-1] = (*found[-1][:2], end)
        clean = "".join(c for c, _, _ in found)
        if self.lowercase:  # of the whole text, as a sigma's case depends on its place; lengths do not
            clean = clean.lower()
            found = [(c, start, end) for c, start, end in found for _ in c.lower()]
        return clean, [start for _, start, _ in found], [end for _, _, end in found]


class Family(NamedTuple):
    """How the models of one paper are read.

    Attributes:
      name: of its class in other libraries.
      specials: role -> name.
      marks: pieces that tell its models.
      cleaning: by default.
    """

    name: str
    specials: dict[str, str]
    marks: tuple[str, ...] = ()
    cleaning: Cleaning | None = None


FAMILIES = {
    "albert": Family("AlbertTokenizer", SPECIALS, ("[CLS]", "[SEP]", "[MASK]"), Cleaning(lowercase=True)),
    "xlnet": Family("XLNetTokenizer", {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>",
                                       "pad": "<pad>", "mask": "<mask>"},
                    ("<cls>", "<sep>", "<eod>"), Cleaning(lowercase=False)),
    "t5": Family("T5Tokenizer", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}),
    "any": Family("SentencePiece", {}),  # no other library's
}


def sentinels(number: int = SENTINELS) -> list[Added]:
    """T5's names of the spans that it left out, which follow the model's ids, the highest number first."""
    return [Added(f"<extra_id_{i}>", special=True, normalized=False) for i in reversed(range(number))]


class SentencePiece(Tokenizer):
    """A SentencePiece model.

    Args:
      model: the bytes of a spiece.model.
      specials: role -> name.
      cleaning: what is done to a text first; None for nothing, and for numbers that keep their comma.
      added: pieces beyond the model's, which follow its ids: T5's sentinels.

    Raises:
      UserError: it is no model of unigrams or BPE, or has no piece of a special token's name.
    """

    def __init__(self, model: bytes, specials: dict[str, str] = SPECIALS, cleaning: Cleaning | None = None,
                 added: Sequence[Added] = ()):
        facts = spiece_model.read(model, specials.values())
        self.model, self.cleaning, self.name = facts.model, cleaning, f"sentencepiece_{facts.algorithm}"
        self.joint = "" if facts.dummy_prefix else " "
        try:
            self._machine = sentencepiece.SentencePieceProcessor(model_proto=self.model)
            self._inside = sentencepiece.SentencePieceProcessor(model_proto=self.model + spiece_model.NO_PREFIX)
            self._bytes = {i for i in range(len(self._machine)) if self._machine.is_byte(i)}
            self._machine.encode("A b,\u00e9\u4e00 1.")  # damaged rules show in use
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"it is no SentencePiece model: {_brief(error)}") from None
        pieces = [*facts.tokens, *(each.content for each in added)]
        if missing := sorted(set(specials.values()) - set(pieces)):
            raise UserError(f"{', '.join(missing)} is none of its {len(pieces):,} pieces; expected the special tokens "
                            f"{' '.join(specials.values())}")
        super().__init__(pieces, added, specials)
        self._numbers = self._commas() if cleaning else {}
        self._marks = re.compile("|".join(re.escape(name) for name in sorted(self._own, key=len, reverse=True)))

    def _commas(self) -> dict[int, list[int]]:
        """Pieces that end in a digit and a comma, and the ids of what their own code makes of them."""
        found = {}
        for i, piece in enumerate(self.tokens):
            if piece.endswith(",") and piece[-2:-1].isdigit():
                parts = self._machine.encode(piece[:-1].replace(SPACE, ""), out_type=str)
                if piece[0] != SPACE and parts[0][0] == SPACE:
                    parts = [part for part in (parts[0][1:], *parts[1:]) if part]
                found[i] = [self._machine.piece_to_id(part) for part in (*parts, ",")]
        return found

    @property
    def lowercase(self) -> bool:
        """Whether text is lower-cased first."""
        return bool(self.cleaning and self.cleaning.lowercase)

    # Text to ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens. The library uses all cores for one call, but one where
        TOKENIZERS_PARALLELISM=false says so, as to the library of the other kinds."""
        clean = [self.cleaning.apply(text) for text in texts] if self.cleaning else list(texts)
        threads = 1 if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("false", "0", "off") else -1
        found = [np.asarray(x, np.int32) for x in self._machine.encode(clean, out_type="numpy", num_threads=threads)]
        for i in self._with_commas(found):
            found[i] = np.array([part for x in found[i].tolist() for part in self._numbers.get(x, (x,))], np.int32)
        return found

    def _with_commas(self, found: list[np.ndarray]) -> list[int]:
        """Which of the texts have a number with its comma. One look at all: one at each would cost as much again as
        the library's work."""
        if not (self._numbers and found):
            return []
        wanted = np.zeros(self.size, bool)
        wanted[list(self._numbers)] = True
        places = np.flatnonzero(wanted[np.concatenate(found)])
        return np.unique(np.searchsorted(np.cumsum([len(ids) for ids in found]), places, side="right")).tolist()

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """As `Tokenizer.encode`. The white space before a word is none of its characters; a piece that is white space
        alone has none."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise TypeError("lone surrogates are no text") from None
        tokens: list[tuple[int, int, int, bool]] = []  # id, start, end, whether it starts a word
        place = 0
        for mark in self._marks.finditer(text) if specials else ():
            tokens += self._part(text, place, mark.start())
            tokens.append((self._ids[mark[0]], *mark.span(), True))
            place = mark.end()
        tokens += self._part(text, place, len(text))
        words = np.cumsum([starts for *_, starts in tokens]) - 1
        return Encoding(np.array([i for i, *_ in tokens], np.int32), [self.id_to_token(i) for i, *_ in tokens],
                        [(start, end) for _, start, end, _ in tokens], words.astype(int).tolist())

    def _part(self, text: str, low: int, high: int) -> list[tuple[int, int, int, bool]]:
        """The pieces of the characters [low, high). After a special token, what no space parts from it has none."""
        part = text[low:high]
        machine = self._inside if low and part and not part[0].isspace() else self._machine
        clean, starts, ends = self.cleaning.trace(part) if self.cleaning else (part, None, None)
        found = machine.encode(clean, out_type="offset_mapping")
        tokens: list[tuple[int, int, int, bool]] = []
        for i, (start, end) in zip(found["ids"], found["offsets"], strict=True):
            while start < end and clean[start].isspace():
                start += 1
            parts = self._numbers.get(i, (i,))
            for number, token in enumerate(parts):
                a, b = _share(start, end, number, len(parts))
                if starts is not None:
                    a, b = (starts[a], ends[b - 1]) if a < b else (starts[a] if a < len(starts) else len(part),) * 2
                first = not tokens or self.tokens[token].startswith(SPACE)
                tokens.append((int(token), low + a, low + b, first))
        return self._whole_characters(tokens)

    def _whole_characters(self, tokens: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
        """Of the pieces that are a character's bytes, the library gives the last alone its place: here all have it."""
        after = None
        for n in range(len(tokens) - 1, -1, -1):
            token, start, end, first = tokens[n]
            if token not in self._bytes:
                after = None
            elif start < end:
                after = start, end
            elif after:
                tokens[n] = (token, *after, first)
        return tokens

    # Ids to text

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, special tokens kept, each with a space before it but <unk>."""
        found = []
        for i in ids:
            piece = self.tokens[i]
            own = piece in self._own and piece != self.specials.get("unk")
            found.append(bytes.fromhex(piece[3:5]) if i in self._bytes else f"{' ' * own}{self.id_to_token(i)}".encode())
        return b"".join(found).decode(errors="replace").removeprefix(" ")

    def id_to_token(self, token: int) -> str:
        """The piece that an id stands for, as text: " the" begins with a space."""
        return self.tokens[token].replace(SPACE, " ")

    # What it is

    def _starts_word(self, piece: str) -> bool:
        """Those with "▁" before them. To ALBERT, whose masks take whole words, and to what is trained here, also
        <unk>, a punctuation mark, and what holds anything else than these marks and English letters: digits, say, or
        letters of other languages."""
        if piece.startswith(SPACE) or (piece in self._own and piece != self.specials.get("unk")):
            return True
        return self.specials == SPECIALS and (
            piece in MARKS or piece.startswith("<") or not {c.lower() for c in piece} <= MARKS | LETTERS)

    def _facts(self) -> list:
        return [RULES, hashlib.sha256(self.model).hexdigest(), self.cleaning and asdict(self.cleaning),
                sorted(self.specials.items())]

    def _config(self) -> dict:
        first, cleaning = len(self.tokens) - len(self.added), self.cleaning
        whose = next((family.name for family in FAMILIES.values() if family.specials == self.specials and
                      (family.cleaning is None) == (cleaning is None)), FAMILIES["any"].name)
        facts = {"tokenizer_class": whose}
        if whose == FAMILIES["t5"].name:
            facts["extra_ids"] = len(self.added)
            if list(self.added) != sentinels(len(self.added)):
                facts = {"tokenizer_class": FAMILIES["any"].name}
        if cleaning:
            facts |= {"do_lower_case": cleaning.lowercase, "keep_accents": cleaning.keep_accents, "remove_space": True}
        if self.added:
            facts["added_tokens_decoder"] = {str(first + i): asdict(each) for i, each in enumerate(self.added)}
        return facts

    def _save_pieces(self, directory: Path) -> None:
        (directory / "spiece.model").write_bytes(self.model)


def _share(start: int, end: int, number: int, of: int) -> tuple[int, int]:
    """The characters of one of the pieces that [start, end) was cut into: the last is a comma."""
    if of == 1:
        return start, end
    return (end - 1, end) if number == of - 1 else (start, max(start, end - 1))


# Training


def train(algorithm: str, vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> SentencePiece:
    """Trains pieces on a corpus, which each call of `texts` streams anew. The special tokens are ids 0 to 4. The same
    texts give the same vocabulary, in every process. Lower-cased, text is cleaned as ALBERT's; otherwise not at all.

    Args:
      algorithm: "unigram" or "bpe".
      vocab_size: all pieces.
      lowercase: whether to lower-case.
      texts: the corpus.

    Raises:
      UserError: the corpus has fewer pieces than that, or more characters; or no text.
    """
    cleaning = Cleaning(lowercase=True) if lowercase else None
    keep = min(1.0, MOST / max(1, sum(map(len, texts()))))
    model, specials, faults = io.BytesIO(), list(SPECIALS.values()), []

    def lines() -> Iterator[str]:
        try:
            for line in _thinned(texts(), keep):
                yield cleaning.apply(line) if cleaning else line
        except (Exception, KeyboardInterrupt, SystemExit) as fault:  # which the library would make an error of its own
            faults.append(fault)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(), model_writer=model, model_type=algorithm, vocab_size=vocab_size,
            character_coverage=COVERAGE, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece=specials[0],
            unk_piece=specials[1], control_symbols=specials[2:], max_sentence_length=8 * LONGEST_LINE,
            num_threads=THREADS, minloglevel=3)
    except RuntimeError as error:
        if faults:
            raise faults[0] from None
        raise UserError(_untrained(str(error), vocab_size)) from None
    return SentencePiece(model.getvalue(), SPECIALS, cleaning)


def _thinned(texts: Iterable[str], keep: float) -> Iterator[str]:
    """Lines of LONGEST_LINE characters at most, a share `keep` of them, evenly spread."""
    taken = 0.0
    for text in texts:
        for start in range(0, len(text), LONGEST_LINE):
            taken += keep
            if taken >= 1 and (line := text[start : start + LONGEST_LINE].replace("\0", " ")).strip():
                yield line
            taken %= 1


def _untrained(error: str, size: int) -> str:
    """What the trainer's complaint means for the config."""
    asked = f"tokenizer.vocab_size is {size:,}"
    if most := re.search(r"Please set it to a value <= (\d+)", error):
        mend = f"set --config.tokenizer.vocab_size={most[1]}, or give" if int(most[1]) >= 64 else "give"
        return f"{asked}, and this corpus has {int(most[1]):,} pieces at most; {mend} more text"
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (f"{asked}, and the corpus has characters and special tokens for {int(least[1]):,} pieces before any "
                f"is learned; set --config.tokenizer.vocab_size to more")
    return f"the corpus trains no SentencePiece vocabulary of {size:,} pieces: {_brief(error)}"


def _brief(error: object) -> str:
    """The library's words without the place in its source."""
    return re.sub(r"^.*?\.cc\(\d+\)\s*", "", str(error).strip(), flags=re.DOTALL)[:200] or "it has no content"
