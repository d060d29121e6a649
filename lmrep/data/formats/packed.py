"""Rows that hold pieces of several documents, none of which sees another.

Each document is cut into pieces of `length - 2` tokens, and each piece becomes a segment: [CLS] piece [SEP], with its
own positions. (A tokenizer without [CLS] or the like puts nothing before a piece, and pieces are longer by one.) Full
pieces fill a row; what is left of the documents is packed by best fit, longest first (Johnson 1973; Krell et al. 2021,
arXiv:2107.02027, for language models). Every token of the store is in exactly one row.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import Plan, Progress, Spans, cut, layout, make_plan

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store

@dataclass(frozen=True)
class Packed:
    """Settings of the format `packed`."""

    duplicates: int = setting(1, "how often a pass walks the corpus, each time with other static masks", at_least=1)


def plan(
    config: Packed,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The packing of a store. It draws nothing, so that `seed` is in the fingerprint alone; rows follow the corpus.

    Raises:
      UserError: rows too short for a token, an empty store, a tokenizer without a token to end a text with.
    """
    marks = layout(store.vocabulary)
    if length <= marks.special:
        raise UserError(f"length is {length}; packed rows hold special tokens and another: set it to "
                        f"{marks.special + 1} or more")

    def build() -> Iterator[Spans]:
        spans = pack(store.sentences[store.documents], length, marks.special)
        if progress:
            progress(len(store.documents) - 1, len(store.documents) - 1)
        yield spans

    return make_plan("packed-1", config, store, length, seed, cache_dir, marks, build, duplicates=config.duplicates)


def pack(bounds: np.ndarray, length: int, special: int = 2) -> Spans:
    """Cuts and packs documents.

    Args:
      bounds: int64[k+1], the first token of each document; last = tokens in all.
      length: tokens a row, special tokens included.
      special: special tokens around each piece.
    """
    return fill(cut(bounds, length - special), length, special)


def fill(bounds: np.ndarray, length: int, special: int) -> Spans:
    """Packs pieces, none of them empty or longer than `length - special`, given by their offsets as in `pack`."""
    starts, lengths = bounds[:-1], np.diff(bounds)
    longest_first = np.argsort(-lengths, kind="stable")
    row = np.empty(len(starts), np.int64)
    row[longest_first] = best_fit(lengths[longest_first] + special, length)

    # Number the rows by the first of their pieces, so that they follow the corpus.
    _, first, row = np.unique(row, return_index=True, return_inverse=True)
    row = np.argsort(np.argsort(first))[row]
    order = np.argsort(row, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row))])
    return Spans(offsets, starts[order], lengths[order].astype(np.int32), {})


def best_fit(sizes: np.ndarray, length: int) -> np.ndarray:
    """Puts each piece into the row with the least room that still takes it, or else into a new row.

    Rows are kept in a histogram of the room they have left, and the bits of one integer tell which of its bins hold
    any: a piece costs O(1), however many rows are open.

    Args:
      sizes: int[s], each at most `length`.

    Returns:
      int64[s], the row of each piece.
    """
    rows_with = [[] for _ in range(length + 1)]
    bins = rows = 0
    placed = np.empty(len(sizes), np.int64)
    for piece, size in enumerate(sizes.tolist()):
        fitting = bins >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1  # the lowest bin that fits
            row = rows_with[left].pop()
            if not rows_with[left]:
                bins ^= 1 << left
        else:
            row, left, rows = rows, length, rows + 1
        placed[piece] = row
        if left > size:
            rows_with[left - size].append(row)
            bins |= 1 << (left - size)
    return placed
