"""What every tokenizer does, whatever its rules. The `tokenizers` library does the work, in its own threads."""

import copy
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import tokenizers

from lmrep.core.vocabulary import Vocabulary


@dataclass(frozen=True)
class Added:
    """A piece that is found in a text as it stands, before any rule cuts the text.

    Attributes:
      content: the piece.
      special: whether it is found only where special tokens are asked for.
      lstrip, rstrip: whether it takes the white space before and after it.
      single_word: whether it is found only as a word of its own.
      normalized: whether it is looked for in the normalized text.
    """

    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True


@dataclass(frozen=True)
class Encoding:
    """One tokenized text.

    Attributes:
      ids: int32[t].
      pieces: the t pieces as text.
      offsets: the characters [start, end) of the text that each came from.
      words: the number, from 0, of the word that each is a piece of; a special token found in the text is a word.
        Words are what the rules cut the text into before pieces are sought: punctuation is words of its own.
    """

    ids: np.ndarray
    pieces: list[str]
    offsets: list[tuple[int, int]]
    words: list[int | None]


class Tokenizer:
    """A tokenizer over a list of pieces, id i being piece i. A kind of it gives the rules.

    Two encoders share the pieces: corpora go through one that knows no special tokens, so that a text which happens
    to say "[MASK]" gives ordinary words; `encode(..., specials=True)` goes through one that does.

    Attributes:
      kind: as `Config.kind`.
      specials: role -> the text of that special token.
      joint: what stands before a sentence that follows another in a document, for the pieces that the text would
        have as a whole.
    """

    kind: ClassVar[str]
    specials: ClassVar[dict[str, str]]
    joint: ClassVar[str]

    def __init__(self, pieces: Sequence[str], added: Sequence[Added] = ()):
        self.pieces, self.added = list(pieces), tuple(added)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._counts = np.zeros(len(self.pieces), np.int64)
        self._plain = self._machine(marked=False)

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.pieces)

    @property
    def mask_token(self) -> str:
        """The text that stands for a hidden word."""
        return self.specials["mask"]

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives need to know of it. The counts are zeros unless they were given."""
        own = {*self.specials.values(), *(added.content for added in self.added)}
        starts = np.array([piece in own or self._starts_word(piece) for piece in self.pieces])
        specials = {role: self._ids[name] for role, name in self.specials.items()}
        return Vocabulary(self.size, specials, starts, self._counts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rules and the pieces: equal for tokenizers that give equal ids."""
        facts = self._facts() + ([[asdict(added) for added in self.added]] if self.added else [])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def with_counts(self, counts: np.ndarray) -> "Tokenizer":
        """The same tokenizer with int64[v] `counts` of its ids in its vocabulary."""
        other = copy.copy(self)
        vars(other).pop("vocabulary", None)
        other._counts = counts
        return other

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens. The library uses all cores for one call."""
        encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Ids, pieces, character offsets and words of one text. With `specials`, the names of special tokens in the
        text are these tokens; none is added either way."""
        encoding = (self._marked if specials else self._plain).encode(text, add_special_tokens=False)
        return Encoding(np.array(encoding.ids, np.int32), [self.piece(i) for i in encoding.ids], encoding.offsets,
                        encoding.word_ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, special tokens kept. What the tokenizer dropped does not come back."""
        raise NotImplementedError

    def piece(self, token: int) -> str:
        """The piece that an id stands for, as text."""
        raise NotImplementedError

    def save(self, directory: str | Path) -> None:
        """Writes the pieces as they are published, and tokenizer.json and tokenizer_config.json as other libraries
        read them."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_pieces(directory)
        (directory / "tokenizer.json").write_text(self._marked.to_str(pretty=True), encoding="utf8")
        config = self._config() | {f"{role}_token": name for role, name in self.specials.items()}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")

    # What a kind gives

    def _rules(self) -> tokenizers.Tokenizer:
        """The library's tokenizer with the rules over the pieces."""
        raise NotImplementedError

    def _special(self, role: str) -> tokenizers.AddedToken:
        """How a special token is found in a text."""
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False)

    def _around(self) -> tokenizers.processors.PostProcessor:
        """What puts special tokens around what it is given, in other libraries' hands."""
        raise NotImplementedError

    def _starts_word(self, piece: str) -> bool:
        raise NotImplementedError

    def _facts(self) -> list:
        """All that decides which ids a text gets, as JSON."""
        raise NotImplementedError

    def _config(self) -> dict:
        """What tokenizer_config.json says of it."""
        raise NotImplementedError

    def _save_pieces(self, directory: Path) -> None:
        raise NotImplementedError

    # The two encoders

    @functools.cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        return self._machine(marked=True)

    def _machine(self, marked: bool) -> tokenizers.Tokenizer:
        machine = self._rules()
        if marked:
            machine.add_special_tokens([self._special(role) for role in self.specials])
            machine.post_processor = self._around()
        for added in self.added:
            if marked or not added.special:
                machine.add_tokens([tokenizers.AddedToken(**asdict(added))])
        return machine
