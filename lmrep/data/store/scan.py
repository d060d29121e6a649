"""The readings of a corpus: a first one finds what split each document is of, and the later ones must find the same
documents. Between them a document costs 17 bytes of memory, not its text.
"""

import itertools
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.data import corpora

TRAINING_SAMPLE = 10**8  # characters of train splits that a tokenizer is trained on, at most

Progress = Callable[[str], None]


class CorpusScan(NamedTuple):
    """What a first reading finds of each document: its place in the splits' range (uint64), its length in characters
    (int64), and its split (int8, an index into SPLITS). And how often what was odd about the text."""

    places: np.ndarray
    lengths: np.ndarray
    splits: np.ndarray
    text: dict[str, int]

    def of(self, split: str) -> np.ndarray:
        """Which documents are of that split, bool."""
        return self.splits == corpora.SPLITS.index(split)

    def characters(self, split: str) -> int:
        """How many a split has."""
        return int(self.lengths[self.of(split)].sum())


def survey(corpus: corpora.Corpus, data: corpora.Config, progress: Progress) -> CorpusScan:
    """The first reading. Raises UserError where the corpus or its splits will not do."""
    places, lengths, tally = array("Q"), array("q"), Counter()
    report = Report("reading", 0, progress)
    for text in corpus.documents(tally):
        places.append(corpora.hash_position(text))
        lengths.append(len(text))
        report.add(len(text))
    odd = {name: count for name, count in sorted(tally.items()) if count and name not in ("documents", "files")}
    found = np.frombuffer(places, np.uint64)
    return CorpusScan(found, np.frombuffer(lengths, np.int64), corpora.assign(found, data), odd)


def describe_anomalies(odd: Mapping[str, int]) -> str:
    """`CorpusScan.text` for people; empty where nothing is odd."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in odd.items() if count)


def again(corpus: corpora.Corpus, found: CorpusScan) -> Iterator[str]:
    """The documents. Raises RunFault where they are not those that the survey found."""
    for place, text in itertools.zip_longest(found.places, corpus.documents()):
        if place is None or text is None or corpora.hash_position(text) != place:
            raise RunFault("the corpus changed while it was read; run again when its files stand still")
        yield text


def documents(data: corpora.Config, split: str, progress: Progress) -> tuple[int, Iterator[str]]:
    """The raw documents of one split of a corpus, in its order, and how many characters they have. The corpus is read
    once to find where its splits end, and once more as the documents are taken. Raises as `survey` and `again`."""
    corpus = corpora.open_corpus(data)
    found = survey(corpus, data, progress)
    if odd := describe_anomalies(found.text):
        progress(f"in the text: {odd}")
    texts = (text for text, wanted in zip(again(corpus, found), found.of(split), strict=True) if wanted)
    return found.characters(split), texts


LINES = re.compile(r"(?<=\S)(?=[^\S\n]*\n)")  # before white space with a line break


def sample(corpus: corpora.Corpus, found: CorpusScan, budget: float, keep_whitespace: bool,
           report: "Report") -> Iterator[str]:
    """The lines of the train split, about `budget` characters: if the split is smaller, some documents more than once,
    and if it is larger, those that a hash selects. If `keep_whitespace`, a line includes the white space before it.

    The library that trains tokenizers holds a text in memory several times; a document may be too long for that.
    """
    whole, part = divmod(budget / max(1, found.characters("train")), 1)
    once_more = (found.places & np.uint64(0xFFFFFFFF)) < part * 2**32
    for text, train, more in zip(again(corpus, found), found.of("train"), once_more, strict=True):
        for _ in range((int(whole) + more) * train):
            yield from LINES.split(text) if keep_whitespace else text.split("\n")
        report.add(len(text))


class Report:
    """Says how far something is, every few seconds, and how long the rest takes where the `total` is known."""

    def __init__(self, what: str, total: int, progress: Progress, done: int = 0, every: float = 3.0):
        self.what, self.total, self.progress, self.every = what, total, progress, every
        self.done = self.before = done
        self.start = self.last = time.monotonic()

    def add(self, characters: int) -> None:
        """Counts characters as done."""
        self.done += characters
        now = time.monotonic()
        if now - self.last < self.every or self.done == self.total:
            return
        self.last = now
        line = f"{self.what}: {self.done / 1e6:,.1f}"
        if self.total:
            left = round((now - self.start) * (self.total - self.done) / (self.done - self.before))
            self.progress(f"{line} of {self.total / 1e6:,.1f} million characters, {left // 60}:{left % 60:02} left")
        else:
            self.progress(f"{line} million characters")
