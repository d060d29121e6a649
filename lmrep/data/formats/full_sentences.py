"""Rows of whole sentences, as many as fit: RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2).

A row is [CLS], sentences in the order of the corpus, and [SEP]. Where a document ends and the next begins, one more
[SEP] stands between them; all of the row is one segment, in which every position sees every other. There is no
question about pairs. Every token of the store is in exactly one row.

A sentence that no row holds whole begins a row of its own. It is cut into pieces of as many tokens as a row holds,
and what is left of it begins a row that further sentences fill up, as any sentence does.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import Layout, Plan, Progress, Spans, cut, layout, make_plan

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store

PROGRESS_EVERY = 100_000  # rows


@dataclass(frozen=True)
class FullSentences:
    """Settings of the format `full_sentences`."""

    duplicates: int = setting(1, "how often a pass walks the corpus, each time with other static masks", at_least=1)


def plan(
    config: FullSentences,
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
    marks = layout(store.vocabulary, spans_per_segment=0)
    room = room_of(length, marks)

    def build() -> Iterator[Spans]:
        starts = row_starts(store.sentences, store.documents, room, across=True, progress=progress)
        first_tokens = store.sentences[store.documents[:-1]]
        spans = np.union1d(starts, first_tokens)
        offsets = np.append(np.searchsorted(spans, starts), len(spans))
        yield Spans(offsets, spans, np.diff(spans, append=store.tokens).astype(np.int32), {})

    return make_plan("full_sentences-1", config, store, length, seed, cache_dir, marks, build,
                     duplicates=config.duplicates)


def room_of(length: int, marks: Layout) -> int:
    """Tokens that a row holds besides its special ones. Raises UserError where that is none."""
    if length <= marks.special:
        raise UserError(f"length is {length}; rows of sentences hold special tokens and another: set it to "
                        f"{marks.special + 1} or more")
    return length - marks.special


def row_starts(
    sentences: np.ndarray, documents: np.ndarray, room: int, across: bool, progress: Progress | None = None
) -> np.ndarray:
    """The first token of each row, where rows take sentences as long as they fit.

    Args:
      sentences: int64[n+1], the first token of each sentence; last = tokens in all.
      documents: int64[k+1], the first sentence of each document; last = n.
      room: tokens that a row holds; each document in it but the first takes one more, for the separator.
      across: whether rows go on beyond the end of a document.

    Returns:
      int64[rows], ascending, from 0.
    """
    pieces = cut(sentences, room)
    first_tokens = sentences[documents]
    document = np.searchsorted(first_tokens, pieces[:-1], side="right") - 1
    # What a row from piece i to the end of piece j holds is ends[j] - begins[i], with the separators in between.
    begins, ends = pieces[:-1] + document, pieces[1:] + document
    limits = np.searchsorted(pieces, first_tokens[1:])[document] if not across else np.full(len(document), len(ends))
    # Views that copy nothing and index to Python integers: numpy's own search costs ten times as much one at a time.
    begins, ends, limits = memoryview(begins), memoryview(ends), memoryview(limits)
    rows, piece = [], 0
    while piece < len(ends):
        rows.append(piece)
        piece = min(bisect_right(ends, begins[piece] + room, piece + 1), limits[piece])
        if progress and len(rows) % PROGRESS_EVERY == 0:
            done = int(document[rows[-1]])
            progress(done, len(documents) - 1)
    if progress:
        progress(len(documents) - 1, len(documents) - 1)
    return pieces[:-1][rows]
