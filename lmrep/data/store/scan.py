"""Several passes over a corpus. The first finds the split of each document; later ones must read the same documents.
Between them, a document takes 17 bytes of memory.
"""

import itertools
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.progress import ProgressReporter
from lmrep.data import corpora

CHANGED = "the corpus changed while it was read; run again when its files no longer change"
TRAINING_SAMPLE = 10**8  # characters of train splits for training a tokenizer, at most

Progress = Callable[[str], None]  # called with lines for people


class CorpusScan(NamedTuple):
    """The properties of each document, from the first pass."""

    positions: np.ndarray  # uint64, the `corpora.hash_position` of each document
    lengths: np.ndarray  # int64, the characters of each document
    splits: np.ndarray  # int8, an index into SPLITS
    text: dict[str, int]  # counts of anomalies of the text

    def in_split(self, split: str) -> np.ndarray:
        """Returns bool for each document, whether it is in a split."""
        return self.splits == corpora.SPLITS.index(split)

    def characters(self, split: str) -> int:
        """Returns the number of characters of a split."""
        return int(self.lengths[self.in_split(split)].sum())


def survey(corpus: corpora.Corpus, data: corpora.Config, progress: Progress) -> CorpusScan:
    """Makes the first pass over the corpus. Raises UserError if it cannot be read or divided into splits."""
    tally, report = Counter(), Report("reading", 0, progress)
    positions, lengths = measure(corpus.documents(tally), report.add)
    return from_measured(positions, lengths, tally, data)


def measure(texts: Iterable[str], report: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (positions, lengths) of documents, as in `CorpusScan`. Calls `report` with each length."""
    positions, lengths = array("Q"), array("q")
    for text in texts:
        positions.append(corpora.hash_position(text))
        lengths.append(len(text))
        report(len(text))
    return np.frombuffer(positions, np.uint64), np.frombuffer(lengths, np.int64)


def from_measured(positions: np.ndarray, lengths: np.ndarray, tally: Mapping[str, int],
                  data: corpora.Config) -> CorpusScan:
    """Makes the scan of a corpus whose documents are measured. Raises UserError if it cannot be divided into splits."""
    anomalies = {name: count for name, count in sorted(tally.items()) if count and name not in ("documents", "files")}
    return CorpusScan(positions, lengths, corpora.assign(positions, data), anomalies)


def describe_anomalies(counts: Mapping[str, int]) -> str:
    """Describes `CorpusScan.text` for people; "" if there are no anomalies."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def reread(corpus: corpora.Corpus, scanned: CorpusScan) -> Iterator[str]:
    """Yields the documents. Raises RunFault if they changed since the first pass."""
    return unchanged(corpus.documents(), scanned.positions)


def unchanged(texts: Iterable[str], positions: np.ndarray) -> Iterator[str]:
    """Yields the texts. Raises RunFault if their `corpora.hash_position` are not `positions`."""
    for position, text in itertools.zip_longest(positions, texts):
        if position is None or text is None or corpora.hash_position(text) != position:
            raise RunFault(CHANGED)
        yield text


def documents(data: corpora.Config, split: str, progress: Progress) -> tuple[int, Iterator[str]]:
    """Returns (characters, raw documents in order) of a split. The corpus is read once to find the splits, and again as
    the documents are consumed. Raises UserError as `survey`, and RunFault as `reread`."""
    corpus = corpora.open_corpus(data)
    scanned = survey(corpus, data, progress)
    if anomalies := describe_anomalies(scanned.text):
        progress(f"in the text: {anomalies}")
    texts = (text for text, selected in zip(reread(corpus, scanned), scanned.in_split(split), strict=True) if selected)
    return scanned.characters(split), texts


LINES = re.compile(r"(?<=\S)(?=[^\S\n]*\n)")  # before white space with a line break


def sample(corpus: corpora.Corpus, scanned: CorpusScan, budget: float, keep_whitespace: bool,
           report: "Report") -> Iterator[str]:
    """Yields lines of the train split, about `budget` characters: some documents more than once if the split is
    smaller, and those that a hash selects if it is larger. If `keep_whitespace`, a line includes the white space before
    it.

    The library that trains tokenizers holds a text in memory several times; a document may be too long for that.
    """
    for text, times in zip(reread(corpus, scanned), repeats(scanned, budget), strict=True):
        for _ in range(times):
            yield from lines(text, keep_whitespace)
        report.add(len(text))


def repeats(scanned: CorpusScan, budget: float) -> np.ndarray:
    """Returns how often each document is in the sample of `budget` characters, int64."""
    times, fraction = divmod(budget / max(1, scanned.characters("train")), 1)
    once_more = (scanned.positions & np.uint64(0xFFFFFFFF)) < fraction * 2**32
    return (int(times) + once_more) * scanned.in_split("train")


def lines(text: str, keep_whitespace: bool) -> list[str]:
    """Splits a document into lines, as `sample` yields them."""
    return LINES.split(text) if keep_whitespace else text.split("\n")


class Report:
    """A progress report of the number of characters that are processed."""

    def __init__(self, what: str, total: int, progress: Progress, done: int = 0):
        self.what, self.total, self.done = what, total, done
        self._reporter = ProgressReporter(progress, total, done)

    def add(self, characters: int) -> None:
        self.done += characters
        self._reporter.report(self.done, lambda _: f"{self.what}: {describe_amount(self.done, self.total)}")


def describe_amount(done: int, total: int = 0) -> str:
    """Formats a number of characters, and their total if that is known, in millions where there are millions."""
    unit, form = (1e6, ",.1f") if max(done, total) >= 1e6 else (1, ",.0f")
    of = f" of {total / unit:{form}}" if total else ""
    return f"{done / unit:{form}}{of}{' million' * (unit > 1)} characters"
