"""The characters of words as ELMo's networks read them (Peters et al. 2018): the bytes of their UTF-8.

A word is LENGTH ids: the begin of the word, its first MAX_BYTES bytes, the end of the word, and fill. The begin and the
end of a sentence are words with one more id in place of the bytes. A position of a batch without a word is all
0. (Ids are those of the released weights, whose table of vectors has ROWS rows; in the released training code, which
has no id for padding, each is lower by 1.)
"""

import functools
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from lmrep.core.vocabulary import Vocabulary

LENGTH = 50
MAX_BYTES = LENGTH - 2
BYTE = 1  # id of byte 0
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, FILL = range(257, 262)
ROWS = 262
DTYPE = np.int16


def utf8(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes words as UTF-8. Returns (the first MAX_BYTES bytes of each word, concatenated, uint8; how many each word
    has, int64[n]). Raises TypeError if a word is not Unicode text (lone surrogates)."""
    try:
        encoded = [word.encode()[:MAX_BYTES] for word in words]
    except UnicodeEncodeError as error:
        raise TypeError(f"{error.object[:60]!r} is not Unicode text") from None
    return np.frombuffer(b"".join(encoded), np.uint8), np.fromiter(map(len, encoded), np.int64, len(encoded))


def from_utf8(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Makes the ids int16[n, LENGTH] of words from the bytes and lengths that `utf8` returns."""
    ids = np.full((len(lengths), LENGTH), FILL, DTYPE)
    ids[:, 0] = BEGIN_WORD
    first = 1 + np.arange(len(lengths)) * LENGTH - (np.cumsum(lengths) - lengths)
    ids.reshape(-1)[np.arange(len(values)) + np.repeat(first, lengths)] = values.astype(DTYPE) + BYTE
    ids[np.arange(len(lengths)), 1 + lengths] = END_WORD
    return ids


def of_words(words: Sequence[str]) -> np.ndarray:
    """Makes the ids int16[n, LENGTH] of words. Raises TypeError as `utf8`."""
    return from_utf8(*utf8(words))


def mark(character: int) -> np.ndarray:
    """Makes the ids int16[LENGTH] of BEGIN_SENTENCE or END_SENTENCE."""
    return np.array([BEGIN_WORD, character, END_WORD] + [FILL] * (LENGTH - 3), DTYPE)


class WordCharacters:
    """The characters of the words of a vocabulary and of words outside of it. Each word outside gets an id after the
    vocabulary's when a text first has it, so that ids identify the characters of every word. `split` makes the arrays
    of a batch from such ids.

    Args:
      words: the vocabulary, by id.
      marks: id -> BEGIN_SENTENCE or END_SENTENCE.
      unknown: the id for words outside of the vocabulary.
    """

    def __init__(self, words: Sequence[str], marks: Mapping[int, int], unknown: int):
        self._words, self._marks, self._unknown = list(words), dict(marks), unknown
        self._others: dict[str, int] = {}
        self._names: list[str] = []
        self._rows = np.zeros((0, LENGTH), DTYPE)
        self._lock = threading.Lock()

    @functools.cached_property
    def table(self) -> np.ndarray:
        """int16[v, LENGTH], the characters of the vocabulary."""
        table = of_words(self._words)
        for i, character in self._marks.items():
            table[i] = mark(character)
        return table

    def number(self, words: Sequence[str]) -> list[int]:
        """Numbers words outside of the vocabulary, after its ids. Raises TypeError as `utf8`."""
        with self._lock:
            if new := [word for word in dict.fromkeys(words) if word not in self._others]:
                rows, first = of_words(new), len(self._names)
                if first + len(new) > len(self._rows):
                    self._rows = np.concatenate([self._rows[:first], np.zeros((first + len(new), LENGTH), DTYPE)])
                self._rows[first : first + len(new)] = rows
                self._names += new
                self._others.update(zip(new, range(len(self._words) + first, len(self._words) + len(self._names)),
                                        strict=True))
            return [self._others[word] for word in words]

    def word(self, i: int) -> str:
        """Returns the word of an id of `number`."""
        return self._names[i - len(self._words)]

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids with `unknown` for words outside of the vocabulary."""
        return np.where(ids < len(self._words), ids, ids.dtype.type(self._unknown))

    def split(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (`known(ids)`, the characters int32[..., LENGTH] of all words)."""
        tokens = self.known(ids)
        rows = self.table[tokens].astype(np.int32)
        others = ids >= len(self._words)
        rows[others] = self._rows[ids[others] - len(self._words)]
        return tokens, rows


def known_ids(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Returns the ids with the unknown id for words outside of the vocabulary; as they are for a tokenizer without
    characters."""
    return ids if vocabulary.characters is None else vocabulary.characters.known(np.asarray(ids))


def add_characters(batch: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """Adds `characters`, all 0 at padding, to a batch whose `tokens` and `targets` may be ids of
    `WordCharacters.number`, which become the unknown id. Changes no batch of a tokenizer without characters."""
    if vocabulary.characters is None:
        return dict(batch)
    tokens, rows = vocabulary.characters.split(batch["tokens"])
    rows[batch["segment_ids"] == 0] = 0
    targets = {"targets": known_ids(batch["targets"], vocabulary)} if "targets" in batch else {}
    return {**batch, **targets, "tokens": tokens, "characters": rows}
