"""Examples packed with chunks of several documents, which do not attend to each other.

Each document is split into chunks of `length - 2` tokens, and each chunk becomes a segment [CLS] chunk [SEP] with its
own positions. (If the tokenizer has no [CLS] or the like, nothing precedes a chunk, and chunks are longer by one.) A
full chunk fills an example; the shorter last chunks of documents are packed with best-fit decreasing (Johnson 1973;
for language models, Krell et al. 2021, arXiv:2107.02027). Every token of the store is in exactly one example.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import FormatDef, Layout, Spans, single_text, split_texts
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Packed:
    """Settings of the format `packed`."""

    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def spans(config: Packed, store: Store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """Yields the packed documents in the order of the corpus. Nothing is random."""
    chunks = split_texts(store.sentences[store.documents], length - layout.special)
    yield pack(chunks, length, layout.special)


def pack(bounds: np.ndarray, length: int, special: int) -> Spans:
    """Packs chunks of text into examples and returns the table of their spans, in the order of the corpus.

    Args:
      bounds: int64[k+1], the first token of each chunk; last = total number of tokens. No chunk is empty or longer than
        `length - special`.
      length: tokens per example, special tokens included.
      special: special tokens around each chunk.
    """
    starts, lengths = bounds[:-1], np.diff(bounds)
    longest_first = np.argsort(-lengths, kind="stable")
    row = np.empty(len(starts), np.int64)
    row[longest_first] = best_fit(lengths[longest_first] + special, length)

    # Number the examples by their first chunk, so that they follow the order of the corpus.
    _, first, row = np.unique(row, return_index=True, return_inverse=True)
    row = np.argsort(np.argsort(first))[row]
    order = np.argsort(row, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row))])
    return Spans(offsets, starts[order], lengths[order].astype(np.int32), {})


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Puts each item into the fullest bin that still has space for it, or else into a new bin.

    Open bins are listed by the space they have left, and bit i of an integer says whether there is a bin with space i:
    an item costs O(1), however many bins are open.

    Args:
      sizes: int[s], each at most `capacity`.
      capacity: the size of a bin.

    Returns:
      int64[s], the bin of each item.
    """
    bins_with_space = [[] for _ in range(capacity + 1)]
    nonempty = bins = 0
    chosen = np.empty(len(sizes), np.int64)
    for item, size in enumerate(sizes.tolist()):
        fitting = nonempty >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1  # the lowest set bit is the least space that fits
            bin_ = bins_with_space[space].pop()
            if not bins_with_space[space]:
                nonempty ^= 1 << space
        else:
            bin_, space, bins = bins, capacity, bins + 1
        chosen[item] = bin_
        if space > size:
            bins_with_space[space - size].append(bin_)
            nonempty |= 1 << (space - size)
    return chosen


DEFINITION = FormatDef(Packed, "packed-1", single_text, table(spans), packed=lambda config: True)
