"""A sentence a row: [CLS] sentence [SEP], cut at the row's length. No two sentences share a row.

For models of single sentences or lines. A corpus with a line a sentence becomes a line a row where its documents are
lines (`data.documents=line`) of one sentence each.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import Plan, Progress, Spans, layout, make_plan
from lmrep.data.formats.full_sentences import room_of

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Lines:
    """Settings of the format `lines`."""

    duplicates: int = setting(1, "how often a pass walks the corpus, each time with other static masks", at_least=1)


def plan(
    config: Lines,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The sentences of a store, in its order. Nothing is drawn, so that `seed` is in the fingerprint alone.

    Raises:
      UserError: rows too short for a token, an empty store, a tokenizer without a token to end a text with.
    """
    marks = layout(store.vocabulary)
    room = room_of(length, marks)

    def build() -> Iterator[Spans]:
        starts, sizes = store.sentences[:-1], np.diff(store.sentences)
        if progress:
            progress(len(store.documents) - 1, len(store.documents) - 1)
        yield Spans(np.arange(len(starts) + 1), starts, np.minimum(sizes, room).astype(np.int32), {})

    return make_plan("lines-1", config, store, length, seed, cache_dir, marks, build, duplicates=config.duplicates)
