"""The words of a store that are outside of its vocabulary, for networks that read the characters of words.

A store of such a tokenizer has three more files, a sparse table in the order of the text:

    unknown.npy          int64[m]      the positions of these words in the stream of tokens, ascending
    unknown_offsets.npy  int64[m + 1]  the first byte of each word in `unknown_bytes`; the last entry is their number
    unknown_bytes.npy    uint8         the first bytes of their UTF-8, as `characters.utf8` gives them
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.vocabulary import Vocabulary
from lmrep.data import characters
from lmrep.data.store.offsets import growing_array, save_offsets

POSITIONS, OFFSETS, BYTES = "unknown.npy", "unknown_offsets.npy", "unknown_bytes.npy"


class UnknownWords(NamedTuple):
    """The words of a text that are outside of the vocabulary."""

    positions: np.ndarray  # int64[m], of these words among the tokens, ascending
    bytes: np.ndarray  # uint8, of all words, one after another
    lengths: np.ndarray  # int64[m], number of bytes of each word


def save(directory: pathlib.Path, parts: Sequence[UnknownWords]) -> None:
    """Writes the words of one part of a store, whose positions count from its first token; OFFSETS holds lengths."""
    empty = UnknownWords(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.int64))
    for name, arrays in zip((POSITIONS, BYTES, OFFSETS), zip(empty, *parts, strict=True), strict=True):
        np.save(directory / name, np.concatenate(arrays))


def join(parts: Sequence[pathlib.Path], directory: pathlib.Path, tokens: Sequence[int]) -> None:
    """Writes the table of a store from its parts, which have these numbers of tokens, unless they have no table."""
    if not (parts[0] / POSITIONS).exists():
        return
    with growing_array(directory / POSITIONS, np.dtype(np.int64)) as append:
        for part, first in zip(parts, np.cumsum([0, *tokens]), strict=False):
            append(np.load(part / POSITIONS) + first)
    with growing_array(directory / BYTES, np.dtype(np.uint8)) as append:
        for part in parts:
            append(np.load(part / BYTES))
    save_offsets(directory / OFFSETS, (np.load(part / OFFSETS) for part in parts))


class UnknownTable:
    """The memory-mapped table of a store."""

    def __init__(self, directory: pathlib.Path, vocabulary: Vocabulary):
        self._positions, self._offsets, self._bytes = (
            np.load(directory / name, mmap_mode="r") for name in (POSITIONS, OFFSETS, BYTES))
        self._unknown = vocabulary.characters.table[vocabulary.specials["unk"]]
        if len(self._offsets) != len(self._positions) + 1 or self._offsets[-1] != len(self._bytes):
            raise ValueError(f"{directory}: the table of unknown words does not match its bytes")

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Looks up the characters int16[n, c] of the words at some positions of the stream, int64[n]; the characters of
        the unknown word where the table has none, which happens in damaged records."""
        if not (len(self) and len(positions)):
            return np.broadcast_to(self._unknown, (len(positions), len(self._unknown)))
        row = np.searchsorted(self._positions, positions).clip(max=len(self) - 1)
        starts = self._offsets[row]
        lengths = self._offsets[row + 1] - starts
        ends = np.cumsum(lengths)
        ids = characters.from_utf8(self._bytes[np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)],
                                     lengths)
        ids[self._positions[row] != positions] = self._unknown
        return ids
