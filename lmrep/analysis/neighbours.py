"""Nearest neighbours of a word in its sentence, over a corpus: of contextual vectors, one for each occurrence of a
word, beside those of a static table, one for each word, its mean over all occurrences (Bommasani et al., 2020)."""

import heapq
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import tokenized_text
from lmrep.data.tokenized_text import TokenizedText
from lmrep.inference import encode
from lmrep.inference.load import Run

MARKED = re.compile(r"\*(\S(?:[^*]*\S)?)\*")
TABLE = 20_000  # words that the static table holds for certain; twice as many before the rarest are dropped


@dataclass(frozen=True)
class Occurrence:
    """A word where it stands."""

    cosine: float
    text: str  # the line
    start: int  # its characters [start, end) of the line
    end: int

    @property
    def word(self) -> str:
        """As it is written."""
        return self.text[self.start : self.end]

    @property
    def marked(self) -> str:
        """The line, with asterisks around the word."""
        return f"{self.text[: self.start]}*{self.word}*{self.text[self.end :]}"


@dataclass(frozen=True)
class StaticWord:
    """A word of the static table, and how often it occurred."""

    cosine: float
    word: str
    count: int


@dataclass(frozen=True)
class Neighbours:
    """What was found.

    Attributes:
      asked: the word that was asked for; its cosine is 1.
      count: how often it occurs in the corpus, in any sentence.
      context: its nearest occurrences of words, nearest first.
      static: the words whose mean vectors are nearest to its own mean vector; empty where `count` is 0.
      words: words of the static table.
    """

    asked: Occurrence
    count: int
    context: list[Occurrence]
    static: list[StaticWord]
    words: int


def parse(marked: str) -> Occurrence:
    """The word that stands between asterisks in a sentence: "Return the *value* of the key."

    Raises:
      UserError: there is no such word, or more than one.
    """
    found = list(MARKED.finditer(marked))
    if len(found) != 1:
        raise UserError(f"{len(found) or 'no'} words are marked in {marked!r}; put asterisks around one: "
                        "\"Return the *value* of the key.\"")
    start, end = found[0].span()
    return Occurrence(1.0, marked[:start] + found[0][1] + marked[end:], start, end - 2)


def neighbours(
    run: Run, marked: str, lines: Iterable[Sequence[str]], *, layers: str = "last", k: int = 10, least: int = 5,
    tell: Callable[[int, int], None] = lambda lines, tokens: None,
) -> Neighbours:
    """The nearest neighbours, by cosine, of a word in its sentence.

    A word's vector is the mean of its pieces'. Words without a letter or a digit are left out, and so is the very
    occurrence that is asked for. Memory does not grow with the corpus: of the rarest words of a large one, the static
    table may miss occurrences.

    Args:
      run: the trained run.
      marked: the sentence, asterisks around the word.
      lines: the corpus, some lines at a time. Lines longer than the model are read in overlapping windows.
      layers: as `run.encode`; one layer, or several made one.
      k: how many neighbours.
      least: how often a word must occur to be a static neighbour.
      tell: is told the numbers of a line done and of its tokens.

    Raises:
      UserError: no word is marked; `layers` are several.
    """
    asked, chosen = parse(marked), run.layers(layers)
    if chosen.join == "stack" and len(chosen.numbers) > 1:
        raise UserError(f"layers is {layers!r}, which are several; ask for one, or put sum: or concat: before them")
    [own] = run.encode([asked.text], layers)
    inside = [place for place, (start, end) in enumerate(own.offsets) if start < asked.end and asked.start < end]
    if not inside:
        raise UserError(f"the tokenizer knows nothing of {asked.word!r}; mark another word")
    query = own.hidden[0, inside].mean(0)
    nearest, table = _Nearest(asked, query, k), _Table(len(query))
    for texts in lines:
        pieces = [tokenized_text.tokenize_text(text, run.tokenizer) for text in texts]
        for i, hidden, _ in run.vectors(pieces, chosen, long="windows"):
            spans, vectors = _worded(pieces[i], encode.by_word(hidden, pieces[i].words)[0])
            nearest.add(pieces[i].text, spans, vectors)
            table.add([_key(run, pieces[i].text[a:b]) for a, b in spans], vectors)
            tell(1, len(pieces[i].ids))
    count, static = table.nearest(_key(run, asked.word), k, least)
    return Neighbours(asked, count, nearest.found(), static, len(table.rows))


def _worded(pieces: TokenizedText, vectors: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The characters and the vectors of those words that have a letter or a digit."""
    spans = pieces.word_offsets
    kept = [i for i, (start, end) in enumerate(spans) if any(map(str.isalnum, pieces.text[start:end]))]
    return [spans[i] for i in kept], vectors[kept]


def _key(run: Run, word: str) -> str:
    """What a word is called in the static table."""
    return word.strip().lower() if getattr(run.tokenizer, "lowercase", False) else word.strip()


class _Nearest:
    """The k occurrences that are nearest so far; the same line counts once."""

    def __init__(self, asked: Occurrence, query: np.ndarray, k: int):
        self._own, self._k = (asked.text, asked.start), k
        self._query = query / np.linalg.norm(query)
        self._heap: list[tuple[float, str, int, int]] = []
        self._seen: set[tuple[str, int]] = set()

    def add(self, text: str, spans: Sequence[tuple[int, int]], vectors: np.ndarray) -> None:
        """Words of a line, with vectors [w, d]."""
        cosines = vectors @ self._query / np.maximum(np.linalg.norm(vectors, axis=1), 1e-30)
        bound = self._heap[0][0] if len(self._heap) == self._k else -np.inf
        for i in np.flatnonzero(cosines > bound):
            place = (text, spans[i][0])
            if place == self._own or place in self._seen:
                continue
            self._seen.add(place)
            heapq.heappush(self._heap, (float(cosines[i]), text, *spans[i]))
            if len(self._heap) > self._k:
                _, text_, start, _ = heapq.heappop(self._heap)
                self._seen.remove((text_, start))

    def found(self) -> list[Occurrence]:
        """The nearest first."""
        return [Occurrence(*entry) for entry in sorted(self._heap, key=lambda entry: -entry[0])]


class _Table:
    """The sum of each word's vectors, and how often it occurred."""

    def __init__(self, d: int):
        self.rows: dict[str, int] = {}
        self._sums, self._counts = np.zeros((2 * TABLE, d)), np.zeros(2 * TABLE, int)

    def add(self, words: Sequence[str], vectors: np.ndarray) -> None:
        """Words and their vectors [w, d]."""
        for word, vector in zip(words, vectors, strict=True):
            if word not in self.rows and len(self.rows) == 2 * TABLE:
                self._prune()
            row = self.rows.setdefault(word, len(self.rows))
            self._sums[row] += vector
            self._counts[row] += 1

    def _prune(self) -> None:
        """Drops the rarer half."""
        kept = np.argsort(-self._counts, kind="stable")[:TABLE]
        words = list(self.rows)
        self.rows = {words[row]: new for new, row in enumerate(kept)}
        for values in (self._sums, self._counts):
            values[:TABLE], values[TABLE:] = values[kept], 0

    def nearest(self, word: str, k: int, least: int) -> tuple[int, list[StaticWord]]:
        """How often `word` occurred, and the k nearest of the words that did so `least` times."""
        if word not in self.rows:
            return 0, []
        n = len(self.rows)
        units = self._sums[:n] / np.maximum(np.linalg.norm(self._sums[:n], axis=1, keepdims=True), 1e-30)
        cosines, row, words = units @ units[self.rows[word]], self.rows[word], list(self.rows)
        order = [i for i in np.argsort(-cosines) if i != row and self._counts[i] >= least][:k]
        return int(self._counts[row]), [StaticWord(float(cosines[i]), words[i], int(self._counts[i])) for i in order]
