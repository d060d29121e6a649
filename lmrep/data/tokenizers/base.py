"""What every tokenizer does, whatever its rules."""

import copy
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary

CONFIG = "tokenizer_config.json"


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
      tokens: the t tokens as text.
      offsets: the characters [start, end) of the text that each came from.
      words: the number, from 0, of the word that each is a piece of; a special token found in the text is a word.
        Words are what the rules cut the text into before pieces are sought: punctuation is words of its own.
    """

    ids: np.ndarray
    tokens: list[str]
    offsets: list[tuple[int, int]]
    words: list[int | None]


class Tokenizer:
    """A tokenizer over a list of pieces, id i being piece i. A kind of it gives the rules.

    The names of special tokens in a text are ordinary text to `encode_batch`, which corpora go through, so that one
    which happens to say "[MASK]" gives ordinary pieces; to `encode(..., specials=True)` they are these tokens.

    Attributes:
      name: as `Config.name`.
      pieces: as they are published.
      specials: role -> the text of that special token, for the roles there are.
      joint: what stands before a sentence that follows another in a document, for the pieces that the text would
        have as a whole.
      added: pieces that are found before the rules cut a text.
    """

    name: str
    joint: str

    def __init__(self, pieces: Sequence[str], added: Sequence[Added], specials: dict[str, str]):
        self.tokens, self.added, self.specials = list(pieces), tuple(added), dict(specials)
        self._ids = {piece: i for i, piece in enumerate(self.tokens)}
        self._own = {*self.specials.values(), *(each.content for each in self.added)}
        self._counts = np.zeros(len(self.tokens), np.int64)

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.tokens)

    @property
    def mask_token(self) -> str:
        """The text that stands for a hidden word. Raises UserError where the tokenizer has none, as GPT-2's."""
        if "mask" not in self.specials:
            raise UserError("this tokenizer has no token that stands for a hidden word; it has "
                            f"{', '.join(self.specials)}")
        return self.specials["mask"]

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives need to know of it. The counts are zeros unless they were given."""
        starts, ends = (np.array([says(piece) for piece in self.tokens]) if says else None
                        for says in (self._starts_word, self._ends_word))
        specials = {role: self._ids[name] for role, name in self.specials.items()}
        return Vocabulary(self.size, specials, starts, self._counts, ends)

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
        """int32 ids of each text, without special tokens. One call uses all cores."""
        raise NotImplementedError

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Ids, pieces, character offsets and words of one text. With `specials`, the names of special tokens in the
        text are these tokens; none is added either way. Raises TypeError for lone surrogates, which are no text."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, special tokens kept. What the tokenizer dropped does not come back."""
        raise NotImplementedError

    def id_to_token(self, token: int) -> str:
        """The piece that an id stands for, as text."""
        raise NotImplementedError

    def save(self, directory: str | Path) -> None:
        """Writes the pieces as they are published, and tokenizer_config.json (and tokenizer.json, where there is one
        for the kind) as other libraries read them."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_pieces(directory)
        config = self._config() | {f"{role}_token": name for role, name in self.specials.items()}
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")

    # What a kind gives

    # One of the two, the other None: whether a piece begins a word, or whether it is the last of one.
    _starts_word: Callable[[str], bool] | None = None
    _ends_word: Callable[[str], bool] | None = None

    def _facts(self) -> list:
        """All that decides which ids a text gets, as JSON."""
        raise NotImplementedError

    def _config(self) -> dict:
        """What tokenizer_config.json says of it."""
        raise NotImplementedError

    def _save_pieces(self, directory: Path) -> None:
        raise NotImplementedError
