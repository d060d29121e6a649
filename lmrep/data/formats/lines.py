"""One sentence per example: [CLS] sentence [SEP], truncated to the example's length.

For models of single sentences or lines. For a corpus with one sentence per line, set `data.documents=line`: each line
is then a document of one sentence, and so an example.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import FormatDef, Layout, Progress, Spans, single_text
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Lines:
    """Settings of the format `lines`."""

    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def spans(
    config: Lines, store: Store, length: int, seed: int, layout: Layout, progress: Progress | None = None
) -> Iterator[Spans]:
    """Yields the sentences in the order of the corpus. Nothing is random."""
    starts, sizes = store.sentences[:-1], np.diff(store.sentences)
    lengths = np.minimum(sizes, length - layout.special).astype(np.int32)
    yield Spans(np.arange(len(starts) + 1), starts, lengths, {})
    if progress:
        progress(len(starts), len(starts))


DEFINITION = FormatDef(Lines, "lines-1", single_text, table(spans))
