"""A text as a model reads it: its tokens, and the characters and words that they come from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.tokenizers import Encoding, Tokenizer


@dataclass(frozen=True)
class TokenizedText(Encoding):
    """A text as a model reads it. Special tokens that were added have the offsets (0, 0) and no word (None)."""

    text: str

    @property
    def word_offsets(self) -> list[tuple[int, int]]:
        """For each word, the range [start, end) of its characters."""
        starts, ends = word_boundaries(self.words)
        # A backward tokenizer gives the last token of a word first.
        return [(min(self.offsets[a:b])[0], max(self.offsets[a:b])[1]) for a, b in zip(starts, ends, strict=True)]


def tokenize_text(
    text: str, tokenizer: Tokenizer, name: str | None = None, around: tuple[list[int], list[int]] | None = None
) -> TokenizedText:
    """Tokenizes a text and adds the ids `around` it, by default [CLS] and [SEP], if the tokenizer has them. The names
    of special tokens in the text, such as [MASK], become these tokens. Messages name the text `name`. Raises UserError
    if it is not Unicode text."""
    try:
        encoding = tokenizer.encode(text, specials=True)
    except TypeError:  # lone surrogates, by which Python represents undecodable bytes of an argument
        raise UserError(f"{name or repr(text[:60])} is not UTF-8 text; convert it") from None
    return _surround(text, tokenizer, around, encoding)


def _surround(
    text: str, tokenizer: Tokenizer, around: tuple[list[int], list[int]] | None, encoding: Encoding
) -> TokenizedText:
    before, after = special_tokens_around(tokenizer) if around is None else around
    token, no_offsets = tokenizer.id_to_token, (0, 0)
    return TokenizedText(
        np.array([*before, *encoding.ids, *after], np.int32),
        [*map(token, before), *encoding.tokens, *map(token, after)],
        [no_offsets] * len(before) + list(encoding.offsets) + [no_offsets] * len(after),
        [None] * len(before) + encoding.words + [None] * len(after), text)


def tokenize_words(
    text: str, tokenizer: Tokenizer, name: str | None = None, around: tuple[list[int], list[int]] | None = None
) -> TokenizedText:
    """Tokenizes a text whose words are separated by white space. A word is never split into two words, and has at least
    one token: the unknown one, where the tokenizer gives none. Tokens have the offsets of their word. `around` and
    `name` are as in `tokenize_text`. Raises UserError if it is not Unicode text, or if a word has no token and the
    tokenizer has no unknown token."""
    matches = list(re.finditer(r"\S+", text))
    try:
        ids_of_words = tokenizer.encode_words([match[0] for match in matches])
    except (TypeError, UnicodeEncodeError):
        raise UserError(f"{name or repr(text[:60])} is not UTF-8 text; convert it") from None
    unknown = tokenizer.vocabulary.specials.get("unk")
    empty = [match[0] for match, word_ids in zip(matches, ids_of_words, strict=True) if not len(word_ids)]
    if unknown is None and empty:
        raise UserError(f"{name or repr(text[:60])}: the tokenizer has no token for the word {empty[0][:60]!r}; remove "
                        "it")
    ids_of_words = [word_ids if len(word_ids) else np.array([unknown], np.int32) for word_ids in ids_of_words]
    ids = np.concatenate([np.zeros(0, np.int32), *ids_of_words])
    words = [i for i, word_ids in enumerate(ids_of_words) for _ in word_ids]
    return _surround(text, tokenizer, around, Encoding(
        ids, list(map(tokenizer.id_to_token, ids.tolist())), [matches[i].span() for i in words], words))


def special_tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids of [CLS] and [SEP], which surround a text, if the tokenizer has them."""
    special = tokenizer.vocabulary.specials
    return tuple([special[role]] if role in special else [] for role in ("cls", "sep"))


def word_boundaries(words: Sequence[int | None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (starts, ends): word i has the tokens at positions [starts[i], ends[i]), int64."""
    indices = np.array([-1 if word is None else word for word in words], int)
    changes = np.flatnonzero(np.diff(indices, prepend=-1, append=-1))
    starts = changes[:-1][indices[changes[:-1]] >= 0] if len(changes) else changes
    ends = changes[np.searchsorted(changes, starts) + 1] if len(starts) else starts
    return starts, ends
