"""Rows of whole sentences of one document: RoBERTa's DOC-SENTENCES (Liu et al. 2019, section 4.2).

An example is [CLS], as many sentences of a document as fit, and [SEP], as in `full_sentences`, but the example ends
with its document. Examples at the ends of documents are therefore short. The paper grew the batch where it met them,
so that a step saw as many tokens as with full sentences. A compiled step takes one shape of batch; here the row grows
instead: with `pack`, short examples share rows, each as a segment of its own with positions of its own that sees no
other, so that the number of examples in a step varies and its number of tokens hardly does. That is what to compare
with `full_sentences`. Without `pack` each example has a row, filled up with padding, and a step sees fewer tokens.

Every token of the store is in exactly one row.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import Plan, Progress, Spans, layout, make_plan
from lmrep.data.formats.full_sentences import room_of, row_starts
from lmrep.data.formats.packed import fill

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class DocSentences:
    """Settings of the format `doc_sentences`."""

    pack: bool = setting(True, "whether short examples share a row, so that steps have about equally many tokens")
    duplicates: int = setting(1, "how often a pass walks the corpus, each time with other static masks", at_least=1)


def plan(
    config: DocSentences,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The rows of a store, in its order. Nothing is drawn, so that `seed` is in the fingerprint alone.

    Raises:
      UserError: rows too short for a token, an empty store, a tokenizer without a token to end a text with.
    """
    marks = layout(store.vocabulary)
    room = room_of(length, marks)

    def build() -> Iterator[Spans]:
        starts = row_starts(store.sentences, store.documents, room, across=False, progress=progress)
        bounds = np.append(starts, store.tokens)
        if config.pack:
            yield fill(bounds, length, marks.special)
        else:
            yield Spans(np.arange(len(bounds)), starts, np.diff(bounds).astype(np.int32), {})

    return make_plan("doc_sentences-1", config, store, length, seed, cache_dir, marks, build,
                     duplicates=config.duplicates)
