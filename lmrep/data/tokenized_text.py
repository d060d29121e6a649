"""A text as a network reads it: its tokens, the characters and the words that they came from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model reads it, special tokens included.

    Attributes:
      text: what was given.
      ids: int32[t].
      tokens: the t tokens as text, special tokens by their names.
      offsets: the characters [start, end) of the text that each came from; (0, 0) for special tokens added to it.
      words: the number of the word, from 0, that each is a piece of; None for special tokens added to the text.
    """

    text: str
    ids: np.ndarray
    tokens: list[str]
    offsets: list[tuple[int, int]]
    words: list[int | None]

    @property
    def word_offsets(self) -> list[tuple[int, int]]:
        """The characters [start, end) of each word."""
        starts, ends = word_boundaries(self.words)
        return [(self.offsets[a][0], self.offsets[b - 1][1]) for a, b in zip(starts, ends, strict=True)]


def tokenize_text(text: str, tokenizer: Tokenizer, name: str | None = None) -> TokenizedText:
    """The pieces of a text between [CLS] and [SEP], where the tokenizer has them. The names of special tokens in the
    text, "[MASK]" say, stand for these. `name` is what messages call the text.

    Raises:
      UserError: it is no Unicode text.
    """
    try:
        found = tokenizer.encode(text, specials=True)
    except TypeError:  # lone surrogates, which stand for bytes of an argument that could not be decoded
        raise UserError(f"{name or repr(text[:60])} is not UTF-8 text; convert it") from None
    before, after = special_tokens_around(tokenizer)
    name, none = tokenizer.id_to_token, (0, 0)
    return TokenizedText(
        text, np.array([*before, *found.ids, *after], np.int32),
        [*map(name, before), *found.tokens, *map(name, after)],
        [none] * len(before) + list(found.offsets) + [none] * len(after),
        [None] * len(before) + found.words + [None] * len(after))


def special_tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special ids before and after each text."""
    special = tokenizer.vocabulary.specials
    return tuple([special[role]] if role in special else [] for role in ("cls", "sep"))


def word_boundaries(words: Sequence[int | None]) -> tuple[np.ndarray, np.ndarray]:
    """The places [start, end) of each word."""
    numbers = np.array([-1 if word is None else word for word in words], int)
    changes = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
    starts = changes[:-1][numbers[changes[:-1]] >= 0] if len(changes) else changes
    ends = changes[np.searchsorted(changes, starts) + 1] if len(starts) else starts
    return starts, ends
