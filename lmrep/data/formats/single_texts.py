"""One sentence (`lines`) or one document (`documents`) per example: [CLS] text [SEP], cut to the example's length.

`lines` is for models of single sentences or lines. For a corpus with one sentence per line, set `data.documents=line`:
each line is then a document of one sentence, and so an example. `documents` is for models of whole texts, such as
sequence autoencoders (Dai and Le, 2015). What does not fit is never shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import FormatDef, Layout, Spans, single_text
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Lines:
    """Settings of the format `lines`."""

    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


@dataclass(frozen=True)
class Documents:
    """Settings of the format `documents`."""

    keep: str = setting("first", "which tokens of a document that is too long are kept", choices=("first", "last"))
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def sentences(config: Lines, store: Store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """Yields the sentences in the order of the corpus. Nothing is random."""
    yield _spans(store.sentences, length - layout.special, "first")


def documents(config: Documents, store: Store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """Yields the documents in the order of the corpus. Nothing is random."""
    yield _spans(store.sentences[store.documents], length - layout.special, config.keep)


def _spans(bounds: np.ndarray, capacity: int, keep: str) -> Spans:
    lengths = np.minimum(np.diff(bounds), capacity).astype(np.int32)
    starts = bounds[:-1] if keep == "first" else bounds[1:] - lengths
    return Spans(np.arange(len(starts) + 1), starts, lengths, {})


LINES = FormatDef(Lines, "lines-1", single_text, table(sentences))
DOCUMENTS = FormatDef(Documents, "documents-1", single_text, table(documents))
