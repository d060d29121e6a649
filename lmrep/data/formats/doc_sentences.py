"""Full sentences of one document per example: RoBERTa's DOC-SENTENCES (Liu et al. 2019, section 4.2).

As `full_sentences`, but an example ends where its document ends, so that the last example of each document is short.
The paper increased the batch size dynamically, so that a step had as many tokens as with FULL-SENTENCES. A compiled
step has one batch size; with `pack`, short examples are packed together instead, each as a segment with its own
positions that does not attend to the others. The number of texts in a batch then varies, and its number of tokens
hardly does, which is the setting to compare with `full_sentences`. Without `pack`, each is padded, and a step has
fewer tokens.

Every token of the store is in exactly one example.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import FormatDef, Layout, Progress, Spans, single_text
from lmrep.data.formats.full_sentences import example_starts
from lmrep.data.formats.packed import pack
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class DocSentences:
    """Settings of the format `doc_sentences`."""

    pack: bool = setting(True, "pack short examples together, so that all steps have about as many tokens")
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def spans(
    config: DocSentences, store: Store, length: int, seed: int, layout: Layout, progress: Progress | None = None
) -> Iterator[Spans]:
    """Yields the examples in the order of the corpus. Nothing is random."""
    capacity = length - layout.special
    starts = example_starts(store.sentences, store.documents, capacity, across=False, progress=progress)
    bounds = np.append(starts, store.tokens)
    if config.pack:
        yield pack(bounds, length, layout.special)
    else:
        yield Spans(np.arange(len(bounds)), starts, np.diff(bounds).astype(np.int32), {})


DEFINITION = FormatDef(DocSentences, "doc_sentences-1", single_text, table(spans), packed=lambda config: config.pack)
