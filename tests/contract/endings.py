"""A format that lmrep does not know: the last tokens of each document."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import FormatDef, Layout, Spans, make_layout
from lmrep.data.formats.plans import table


@dataclass(frozen=True)
class Endings:
    """Settings of the format `endings`."""

    tokens: int = setting(12, "of a document, from its end; fewer where the example is shorter", at_least=1)
    duplicates: int = setting(1, "passes over the corpus in an epoch", at_least=1)


def layout(config: Endings, vocabulary: Vocabulary) -> Layout:
    """[CLS] tokens [SEP]."""
    return make_layout(vocabulary)


def spans(config: Endings, store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """One span per document."""
    bounds = store.sentences[store.documents]
    lengths = np.minimum(np.diff(bounds), min(config.tokens, length - layout.special)).astype(np.int32)
    yield Spans(np.arange(len(lengths) + 1), bounds[1:] - lengths, lengths, {})


DEFINITION = FormatDef(Endings, "endings-1", layout, table(spans))
