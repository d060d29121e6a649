"""Tokenizers: text to ids and back, by BERT's rules (Devlin et al. 2019, and the code released with it).

Text is cleaned (control characters dropped, white space made spaces, spaces put around each CJK character, lower-cased
and stripped of accents where `lowercase`), split at white space and at each punctuation character, and each word is
cut greedily into the longest known pieces from the left, "##" before those that continue it. A word of more than 200
characters, or one with no such cut, is [UNK]. The `tokenizers` library does the work, in its own threads. It departs
from BERT's code for private-use code points, which it drops, and for a few hundred of the rarest (punctuation newer
than its Unicode tables, the first characters of CJK extension E), which it classes otherwise.
"""

import functools
import hashlib
import json
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LONGEST_WORD = 200  # characters; longer words are [UNK]
RULES = "bert-1"  # names the rules in fingerprints: raise it when a change moves an id or trains another vocabulary
COVERAGE = 0.9999  # share of a corpus's characters that get a piece of their own; words with rarer ones are [UNK]


@dataclass(frozen=True)
class Config:
    """Which tokenizer to train, or to load."""

    kind: str = setting("wordpiece", "how words are cut", choices=("wordpiece",))
    vocab_size: int = setting(8192, "how many pieces to train; a loaded vocabulary keeps its own size", at_least=64,
                              at_most=2**31 - 1)
    vocab_file: str = setting("", "a published vocab.txt (one piece a line) to load instead of training")
    lowercase: bool = setting(True, "lower-case and strip accents: as BERT uncased")


@dataclass(frozen=True)
class Encoding:
    """One tokenized text: the ids int32[t], their pieces, and the characters [start, end) that each came from."""

    ids: np.ndarray
    pieces: list[str]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A WordPiece tokenizer over a list of pieces, id i being piece i.

    Two encoders share it: corpora go through one that knows no special tokens, so that a text which happens to say
    "[MASK]" gives three ordinary words; `encode(..., specials=True)` goes through one that does.
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool = True, counts: np.ndarray | None = None):
        self.pieces, self.lowercase = list(pieces), lowercase
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._plain = _machine(self._ids, lowercase)
        self._counts = np.zeros(len(self.pieces), np.int64) if counts is None else counts

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.pieces)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives need to know of it. The counts are zeros unless they were given."""
        starts = np.array([not piece.startswith("##") for piece in self.pieces])
        specials = {role: self._ids[name] for role, name in SPECIALS.items()}
        return Vocabulary(self.size, specials, starts, self._counts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rules and the pieces: equal for tokenizers that give equal ids."""
        facts = json.dumps([RULES, self.lowercase, LONGEST_WORD, self.pieces])
        return hashlib.sha256(facts.encode()).hexdigest()

    @functools.cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        """The encoder that finds special tokens in a text, and puts [CLS] and [SEP] around what it is given."""
        machine = _machine(self._ids, self.lowercase)
        machine.add_special_tokens(list(SPECIALS.values()))
        cls, sep = ((SPECIALS[role], self._ids[SPECIALS[role]]) for role in ("cls", "sep"))
        machine.post_processor = processors.BertProcessing(sep, cls)
        return machine

    def with_counts(self, counts: np.ndarray) -> "Tokenizer":
        """The same tokenizer with int64[v] `counts` of its ids in its vocabulary."""
        return Tokenizer(self.pieces, self.lowercase, counts)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens. The library uses all cores for one call."""
        encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Ids, pieces and character offsets of one text. With `specials`, "[MASK]" and its like in the text are the
        special tokens; none is added either way."""
        encoding = (self._marked if specials else self._plain).encode(text, add_special_tokens=False)
        return Encoding(np.array(encoding.ids, np.int32), encoding.tokens, encoding.offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: pieces joined to words, punctuation close to them, special tokens kept. Case, accents and
        spacing that the tokenizer dropped do not come back."""
        text = " ".join(self.pieces[i] for i in ids).replace(" ##", "")
        for pattern, replacement in TIDY:
            text = pattern.sub(replacement, text)
        return text

    def piece(self, token: int) -> str:
        """The piece that an id stands for."""
        return self.pieces[token]

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes vocab.txt, and tokenizer.json and tokenizer_config.json as other libraries read them."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self.pieces), encoding="utf8")
        (directory / "tokenizer.json").write_text(self._marked.to_str(pretty=True), encoding="utf8")
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase, "strip_accents": None,
                  "tokenize_chinese_chars": True, **{f"{role}_token": name for role, name in SPECIALS.items()}}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")


# Patterns that close up what tokenizing spread apart, for `decode`.
TIDY = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r" ([.,;:!?%)\]}’”])(?=\W|$)", r"\1"),
    (r"(?<!\w)([(\[{‘“$]) (?!(?:PAD|UNK|CLS|SEP|MASK)\])", r"\1"),
    (r"(\w) (['’]) (s|t|d|m|re|ve|ll)\b", r"\1\2\3"),
    (r"(\w) ([-‐_/]) (?=\w)", r"\1\2"),
)]


def load(directory: str | pathlib.Path) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote. Raises UserError where the directory holds none."""
    directory = pathlib.Path(directory)
    try:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer in {directory}: {error}") from error
    return Tokenizer(read_vocabulary(directory / "vocab.txt"), bool(config.get("do_lower_case", True)))


def from_vocab_file(config: Config) -> Tokenizer:
    """The tokenizer of a published vocabulary. Raises UserError for a file that is not one, or not of this case."""
    pieces = read_vocabulary(config.vocab_file)
    cased = sum(piece != piece.lower() for piece in pieces if piece not in SPECIALS.values())
    if config.lowercase and cased > len(pieces) // 20:
        raise UserError(f"{config.vocab_file}: {cased:,} of {len(pieces):,} pieces have capitals, which lower-cased "
                        "text never reaches; set --config.tokenizer.lowercase=False for a cased vocabulary")
    return Tokenizer(pieces, config.lowercase)


def read_vocabulary(path: str | pathlib.Path) -> list[str]:
    """The pieces of a vocab.txt, one a line, id i on line i + 1. Raises UserError naming the line that is wrong."""
    try:
        lines = pathlib.Path(path).expanduser().read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; expected a vocab.txt, one piece a line") from error
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    pieces = [line.strip() for line in lines[: len(lines) - (lines[-1] == "")]]
    if not pieces:
        raise UserError(f"{path} is empty; expected a vocab.txt, one piece a line")
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if not piece:
            raise UserError(f"{path}, line {number} is empty; expected one piece a line")
        if piece in seen:
            raise UserError(f"{path}, line {number}: {piece!r} stands on line {seen[piece]} already; expected each "
                            "piece once")
        seen[piece] = number
    missing = [name for name in SPECIALS.values() if name not in seen]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} on none of its {len(pieces):,} lines; expected BERT's vocab.txt "
                        f"with {' '.join(SPECIALS.values())}")
    return pieces


def train(config: Config, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """Trains WordPiece on a corpus, which each call of `texts` streams anew. The special tokens are ids 0 to 4.

    The same texts give the same vocabulary, in every process. The library alone does not: it numbers the characters
    in the order of a hash map seeded at random, and that order breaks ties between merges. So each character, and
    each that can continue a word, is given its id beforehand.
    """
    machine = _machine({}, config.lowercase)
    alphabet = _alphabet(machine, texts(), config)
    inside = ["##" + c for c in alphabet if _continues(machine, c)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size, min_frequency=2, show_progress=False, continuing_subword_prefix="##",
        special_tokens=[*SPECIALS.values(), *alphabet, *inside], initial_alphabet=alphabet,
        limit_alphabet=len(alphabet))
    machine.train_from_iterator(texts(), trainer)
    ids = machine.get_vocab()
    return Tokenizer(sorted(ids, key=ids.__getitem__), config.lowercase)


def _alphabet(machine: tokenizers.Tokenizer, texts: Iterable[str], config: Config) -> list[str]:
    """The characters to give pieces: the most frequent ones, up to COVERAGE of the text or a third of the pieces."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(machine.normalizer.normalize_str(text))
    ranked = sorted(((n, c) for c, n in counts.items() if not c.isspace()), key=lambda pair: (-pair[0], pair[1]))
    covered = np.cumsum([0] + [n for n, _ in ranked])
    needed = int(np.searchsorted(covered, COVERAGE * covered[-1]))
    return sorted(c for _, c in ranked[: min(needed, (config.vocab_size - len(SPECIALS)) // 3)])


def _continues(machine: tokenizers.Tokenizer, character: str) -> bool:
    """Whether this character can stand inside of a word: punctuation and CJK cannot."""
    return len(machine.pre_tokenizer.pre_tokenize_str(machine.normalizer.normalize_str("a" + character))) == 1


def _machine(ids: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    """The library's tokenizer with BERT's rules over a vocabulary."""
    machine = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=SPECIALS["unk"],
                                                    max_input_chars_per_word=LONGEST_WORD))
    machine.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                                    lowercase=lowercase)
    machine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    machine.decoder = decoders.WordPiece(prefix="##")
    return machine
