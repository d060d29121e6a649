"""Nearest neighbours of a word in its sentence, over a corpus: by contextual vectors, one for each occurrence of a
word, and by static vectors, one for each word, the mean over its occurrences (Bommasani et al., 2020)."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.tokenized_text import TokenizedText
from lmrep.inference import encode
from lmrep.inference.run import Run

MARKED = re.compile(r"\*(\S(?:[^*]*\S)?)\*")
TABLE = 20_000  # words that the static table keeps when it prunes the rarest; it prunes at twice as many


@dataclass(frozen=True)
class Occurrence:
    """A word in a line of text."""

    cosine: float
    text: str  # the line
    start: int  # its characters [start, end) of the line
    end: int

    @property
    def word(self) -> str:
        """The word as written."""
        return self.text[self.start : self.end]

    @property
    def marked(self) -> str:
        """The line, with asterisks around the word."""
        return f"{self.text[: self.start]}*{self.word}*{self.text[self.end :]}"


@dataclass(frozen=True)
class StaticWord:
    """A word of the static table with its number of occurrences."""

    cosine: float
    word: str
    count: int


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of a word."""

    query: Occurrence  # the word; its cosine is 1
    count: int  # its occurrences in the corpus, in any sentence
    context: list[Occurrence]  # the occurrences with the nearest contextual vectors, nearest first
    static: list[StaticWord]  # the words with the nearest mean vectors; empty where `count` is 0
    words: int  # number of words in the static table


def parse(marked: str) -> Occurrence:
    """Parses a sentence with a word between asterisks: "Return the *value* of the key."

    Raises:
      UserError: no word is marked, or more than one.
    """
    words = list(MARKED.finditer(marked))
    if len(words) != 1:
        raise UserError(f"{len(words) or 'no'} words are marked in {marked!r}; put asterisks around one: "
                        "\"Return the *value* of the key.\"")
    start, end = words[0].span()
    return Occurrence(1.0, marked[:start] + words[0][1] + marked[end:], start, end - 2)


def neighbours(
    run: Run, marked: str, lines: Iterable[Sequence[str]], *, layers: str = "last", k: int = 10, min_count: int = 5,
    progress: Callable[[int, int], None] = lambda lines, tokens: None,
) -> Neighbours:
    """Finds the nearest neighbours, by cosine, of a word in its sentence.

    A word's vector is the mean of its tokens' vectors. Words without a letter or a digit and the queried occurrence
    itself are left out. Memory does not grow with the corpus; the static table may miss occurrences of rare words in a
    large one.

    Args:
      marked: the sentence, asterisks around the word.
      lines: the corpus, in lists of lines. Lines longer than the model are encoded in overlapping windows.
      layers: as for `run.encode`; one layer, or a sum or concatenation.
      k: number of neighbours of each kind.
      min_count: number of occurrences that a word needs to be a static neighbour.
      progress: called with (1, number of tokens) after each line.

    Raises:
      UserError: not exactly one word is marked, or it has no tokens; `layers` are several.
    """
    query, choice = parse(marked), run.layers(layers)
    if choice.join == "stack" and len(choice.numbers) > 1:
        raise UserError(f"layers is {layers!r}, which are several layers; give one, or combine them: "
                        "sum:1,2 or concat:1,2")
    [encoded] = run.encode([query.text], layers)
    inside = [t for t, (start, end) in enumerate(encoded.offsets) if start < query.end and query.start < end]
    if not inside:
        raise UserError(f"the tokenizer has no tokens for {query.word!r}; mark another word")
    vector = encoded.hidden[0, inside].mean(0)
    unit, table = vector / np.linalg.norm(vector), _Table(len(vector))
    nearest: list[tuple[float, str, int, int]] = []
    for texts in lines:
        tokenized = [run.tokenize(text) for text in texts]
        for i, hidden, _ in run.vectors(tokenized, choice, long="windows"):
            spans, vectors = _words(tokenized[i], encode.by_word(hidden, tokenized[i].words)[0])
            cosines = vectors @ unit / np.maximum(np.linalg.norm(vectors, axis=1), 1e-30)
            nearest = _nearest(nearest, query, tokenized[i].text, spans, cosines, k)
            table.add([_key(run, tokenized[i].text[a:b]) for a, b in spans], vectors)
            progress(1, len(tokenized[i].ids))
    count, static = table.nearest(_key(run, query.word), k, min_count)
    return Neighbours(query, count, [Occurrence(*entry) for entry in nearest], static, len(table.index))


def _words(text: TokenizedText, vectors: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Returns the character spans and vectors of the words that have a letter or a digit."""
    spans = text.word_offsets
    indices = [i for i, (start, end) in enumerate(spans) if any(map(str.isalnum, text.text[start:end]))]
    return [spans[i] for i in indices], vectors[indices]


def _key(run: Run, word: str) -> str:
    """Returns the key of a word in the static table: without spaces, in lower case if the tokenizer ignores case."""
    return word.strip().lower() if getattr(run.tokenizer, "lowercase", False) else word.strip()


def _nearest(
    nearest: list[tuple[float, str, int, int]], query: Occurrence, text: str, spans: Sequence[tuple[int, int]],
    cosines: np.ndarray, k: int,
) -> list[tuple[float, str, int, int]]:
    """Returns the k nearest of the fields of occurrences, nearest first, and of the words of a line at `spans`. Equal
    lines count once."""
    bound = nearest[-1][0] if len(nearest) == k else -np.inf
    known = {(query.text, query.start), *((line, start) for _, line, start, _ in nearest)}
    near = [(float(cosines[i]), text, *spans[i]) for i in np.flatnonzero(cosines > bound)
            if (text, spans[i][0]) not in known]
    return sorted([*nearest, *near], reverse=True)[:k]


class _Table:
    """The sum of each word's vectors and its number of occurrences."""

    def __init__(self, d: int):
        self.index: dict[str, int] = {}
        self._sums, self._counts = np.zeros((2 * TABLE, d)), np.zeros(2 * TABLE, int)

    def add(self, words: Sequence[str], vectors: np.ndarray) -> None:
        """Adds words with their vectors [w, d]."""
        for word, vector in zip(words, vectors, strict=True):
            if word not in self.index and len(self.index) == 2 * TABLE:
                self._prune()
            row = self.index.setdefault(word, len(self.index))
            self._sums[row] += vector
            self._counts[row] += 1

    def _prune(self) -> None:
        """Drops the rarer half of the words."""
        frequent = np.argsort(-self._counts, kind="stable")[:TABLE]
        words = list(self.index)
        self.index = {words[row]: new for new, row in enumerate(frequent)}
        for values in (self._sums, self._counts):
            values[:TABLE], values[TABLE:] = values[frequent], 0

    def nearest(self, word: str, k: int, min_count: int) -> tuple[int, list[StaticWord]]:
        """Returns how often `word` occurs, and the k nearest words that occur at least `min_count` times."""
        if word not in self.index:
            return 0, []
        n = len(self.index)
        units = self._sums[:n] / np.maximum(np.linalg.norm(self._sums[:n], axis=1, keepdims=True), 1e-30)
        cosines, row, words = units @ units[self.index[word]], self.index[word], list(self.index)
        order = [i for i in np.argsort(-cosines) if i != row and self._counts[i] >= min_count][:k]
        return int(self._counts[row]), [StaticWord(float(cosines[i]), words[i], int(self._counts[i])) for i in order]
