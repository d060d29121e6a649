"""The tokenizer interface, and the record by which a tokenizer is registered."""

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.characters import WordCharacters

if TYPE_CHECKING:
    from lmrep.data.tokenizers.published import PublishedFiles

CONFIG = "tokenizer_config.json"
SENTINEL = "<extra_id_{}>"  # T5's names of the tokens that represent spans


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the raw text, before the text is split into words."""

    content: str
    special: bool = False  # whether it is matched only if special tokens are requested
    lstrip: bool = False  # whether it absorbs the white space before it
    rstrip: bool = False  # whether it absorbs the white space after it
    single_word: bool = False  # whether it is matched only as a separate word
    normalized: bool = True  # whether it is matched in the normalized text


@dataclass(frozen=True)
class Encoding:
    """One tokenized text of t tokens."""

    ids: np.ndarray  # int32[t]
    tokens: list[str]  # the tokens as text
    offsets: list[tuple[int, int]]  # for each token, the range [start, end) of characters that it comes from
    # for each token, the index of its word, from 0. Words are what the text is split into before subword tokenization;
    # a punctuation mark or a special token is a word.
    words: list[int | None]


class Tokenizer:
    """Base class of tokenizers. The id of a token is its index in `tokens`.

    `encode_batch`, which tokenizes corpora, treats the names of special tokens as ordinary text: a document that
    contains "[MASK]" gets ordinary tokens. `encode(..., specials=True)` turns them into the special tokens.

    A tokenizer with `characters` gives each word outside of its vocabulary a new id, after the ids of `tokens`, so
    that arrays of ids keep the characters of every word until `data.characters.add_characters` makes a batch of them.

    Attributes:
      name: the name in TOKENIZERS.
      tokens: the tokens by id, as in the published vocabulary file.
      ids: token -> id.
      specials: role -> text of that special token, for the roles that the tokenizer has.
      added: tokens that are matched before the text is split into words.
      atomic: the special and the added tokens, which are never a part of a word.
      lowercase: whether text is lower-cased.
      sentence_separator: text that is put before a sentence that follows another in a document, if white space is
        collapsed, so that the sentence gets the tokens that it has within the document.
      one_separator: whether one separator is between the texts of a pair even for networks without token types;
        otherwise they get two, as in RoBERTa.
      keeps_spacing: whether tokens record if there was a space before a punctuation mark.
      published: whether other libraries read the files of `save`, and give the same ids.
      notation: how `id_to_token` marks word boundaries, as a sentence for people; "" if tokens appear as in the text.
      backward: whether the ids of a text are in reverse order (`backward.py`).
      removes_unknown: whether words outside of the vocabulary have no token (`known_words.py`).
    """

    name: str
    lowercase = False
    sentence_separator = ""
    one_separator = False
    keeps_spacing = True
    published = True
    notation = ""
    backward = False
    removes_unknown = False

    def __init__(self, tokens: Sequence[str], added: Sequence[AddedToken], specials: Mapping[str, str]):
        self.tokens, self.added, self.specials = list(tokens), tuple(added), dict(specials)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.atomic = {*self.specials.values(), *(token.content for token in self.added)}
        self._counts = np.zeros(len(self.tokens), np.int64)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def mask_token(self) -> str:
        """The text of the mask token. Raises UserError if the tokenizer has none, such as GPT-2's."""
        if "mask" not in self.specials:
            raise UserError(f"this tokenizer has no mask token; its special tokens are {', '.join(self.specials)}")
        return self.specials["mask"]

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The facts that objectives need about the tokenizer. Counts are zeros unless `with_counts` set them."""
        def flags(predicate: Callable[[str], bool] | None) -> np.ndarray | None:
            return np.array([predicate(token) for token in self.tokens]) if predicate else None

        return Vocabulary(self.size, {role: self.ids[token] for role, token in self.specials.items()},
                          flags(self.starts_word), self._counts, flags(self.ends_word), self.word_characters,
                          tuple(self.sentinels()))

    def sentinels(self, before: str = "") -> Iterator[int]:
        """Yields the ids of the tokens that represent spans; `before` is a prefix of their names."""
        for number in itertools.count():
            if (name := before + SENTINEL.format(number)) not in self.ids:
                return
            yield self.ids[name]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rules and the tokens: equal for tokenizers that give the same ids to every text."""
        identity = self.identity() + ([[asdict(token) for token in self.added]] if self.added else [])
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def with_counts(self, counts: np.ndarray) -> "Tokenizer":
        """Returns a copy whose vocabulary has `counts`, int64[v]."""
        other = copy.copy(self)
        vars(other).pop("vocabulary", None)
        other._counts = counts
        return other

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes texts to int32 ids, without special tokens. Uses all cores."""
        raise NotImplementedError

    def encode_words(self, words: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes each word of a text that is split into words, to int32 ids. Uses all cores."""
        return self.encode_batch([self.sentence_separator + word for word in words])

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """Tokenizes a text to ids, tokens, character offsets and words. If `specials`, the names of special tokens in
        the text become these tokens; adds none in either case. Raises TypeError for lone surrogates."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, with special tokens. Does not restore what tokenization discards, such as case."""
        raise NotImplementedError

    def id_to_token(self, token: int) -> str:
        """Returns the token of an id as text."""
        return self.tokens[token]

    def spaced_token(self, token: int) -> str:
        """Returns the token of an id, with a space before or after it where the text has one."""
        return self.id_to_token(token)

    def save(self, directory: str | Path) -> None:
        """Writes the vocabulary in its published format and tokenizer_config.json, as other libraries read them."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.save_vocabulary(directory)
        config = {f"{role}_token": token for role, token in self.specials.items()} | self.saved_config()
        (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")

    # Defined by tokenizers of words whose characters networks read; None for others.

    characters: Callable[[Sequence[str]], np.ndarray] | None = None  # words -> int32[n, c]; see `data.characters`
    # texts -> (their ids as from `encode_batch`, but `unk` for words outside of the vocabulary; these words, in order)
    encode_known: Callable[[Sequence[str]], tuple[list[np.ndarray], list[str]]] | None = None
    word_characters: WordCharacters | None = None

    # Defined by every tokenizer, besides `encode_batch`, `encode` and `decode`.

    # Exactly one of the two: whether a token starts a word, or whether it is the last token of a word.
    starts_word: Callable[[str], bool] | None = None
    ends_word: Callable[[str], bool] | None = None

    def identity(self) -> list:
        """Returns everything that decides which ids a text gets, for JSON."""
        raise NotImplementedError

    def saved_config(self) -> dict:
        """Returns the content of tokenizer_config.json, without the special tokens."""
        raise NotImplementedError

    def save_vocabulary(self, directory: Path) -> None:
        """Writes the vocabulary in its published format, unless tokenizer.json holds it; `save` writes the configs."""


class Trained(NamedTuple):
    """The properties of a vocabulary that are known before it is trained."""

    specials: Mapping[str, str]  # role -> text of the special tokens, in the order of their ids, from 0
    reserved: int = 0  # number of other tokens that it has before any is learned
    exact_size: bool = False  # whether training fails where the text gives fewer tokens than `vocab_size`
    size_is_limit: bool = False  # whether `vocab_size` is a limit that the text often does not reach, as with words
    sentinels: int = 0  # number of reserved tokens at its end that represent spans

    @property
    def min_size(self) -> int:
        """The size of the vocabulary before any token is learned."""
        return len(self.specials) + self.reserved


@row
class TokenizerDef(NamedTuple):
    """An entry of TOKENIZERS."""

    # (vocab_size, lowercase, texts) -> Tokenizer. Each call of `texts` streams the training text from its start. The
    # same text gives the same tokenizer. Raises UserError if it cannot be trained to that size.
    train: Callable[[int, bool, Callable[[], Iterator[str]]], Tokenizer]
    # PublishedFiles -> Tokenizer; None if the directory does not hold this tokenizer. Raises UserError if the files are
    # malformed or split text by other rules.
    load: Callable[["PublishedFiles"], Tokenizer | None]
    # names the implementation in fingerprints; change it when a change of the code changes an id or what is trained
    rules: str
    trained: Trained  # the properties of a vocabulary that is not trained yet
    whitespace: str = "collapse"  # "keep" or "collapse", the meaning of `Config.whitespace` = "auto"
    lowercase: bool | None = None  # None if `Config.lowercase` decides; otherwise what the tokenizer always does
    # (path, lowercase) -> Tokenizer of a vocabulary file alone; None if it takes other files too
    load_vocabulary: Callable[[Path, bool], Tokenizer] | None = None
    characters: int = 0  # number of ids of the characters of each word in a batch; 0 if batches have none
