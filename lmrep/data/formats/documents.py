"""One document per example: [CLS] document [SEP], cut to the example's length.

For models of whole texts, such as sequence autoencoders (Dai and Le, 2015). `keep` is the part of a long document that
is kept; the rest is never shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import FormatDef, Layout, Progress, Spans, single_text
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Documents:
    """Settings of the format `documents`."""

    keep: str = setting("first", "which tokens of a document that is too long are kept", choices=("first", "last"))
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def spans(
    config: Documents, store: Store, length: int, seed: int, layout: Layout, progress: Progress | None = None
) -> Iterator[Spans]:
    """Yields the documents in the order of the corpus. Nothing is random."""
    bounds = store.sentences[store.documents]
    lengths = np.minimum(np.diff(bounds), length - layout.special).astype(np.int32)
    starts = bounds[:-1] if config.keep == "first" else bounds[1:] - lengths
    yield Spans(np.arange(len(starts) + 1), starts, lengths, {})
    if progress:
        progress(len(starts), len(starts))


DEFINITION = FormatDef(Documents, "documents-1", single_text, table(spans))
