"""Records of ArrayRecord files in an object store, of which only the bytes of the requested records are read.

The library that reads ArrayRecord opens local files alone. It gets sparse files in memory, in which the ranges that it
reads are filled before, and freed afterwards; it checks the hashes of the format. The end of a file is kept: its index,
some twelve bytes a record, says where each record begins.

A file consists of blocks of `BLOCK` bytes, each with a header of `BLOCK_HEADER` bytes, between which lie the chunks of
the Riegeli format. A chunk has a header and records, after their sizes. The chunk at the beginning of the last block
gives the position of the index, which is a chunk too.
"""

import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow
from array_record.python.array_record_data_source import ArrayRecordDataSource

from lmrep.core import object_store, remote
from lmrep.core.errors import RunFault
from lmrep.core.files import Damaged

BLOCK, BLOCK_HEADER, CHUNK_HEADER = 2**16, 24, 40
INDEX_ENTRY = 16  # bytes of a record in the index, at most as a rule; a longer index takes a second read
PROBE = "dataset_info.json"  # a small file beside the records


class _File(NamedTuple):
    """A sparse file in memory."""

    content: mmap.mmap
    kept: int  # the position of the part that stays
    bounds: np.ndarray  # int64[n + 1], the position of each record, and the end of the last


class RemoteRecords:
    """The records of consecutive files, as those of TFDS's data source. It may be used by several threads.

    Args:
      url: the folder of the files.
      files: {name: (bytes, records)}.
    """

    def __init__(self, url: str, files: Mapping[str, tuple[int, int]]):
        store = remote.Store(url, "--data_dir", "gs://bucket/data")
        self.url, self._files = store.url, dict(files)
        self._names, (self._sizes, counts) = list(files), zip(*files.values(), strict=True)
        self._ends = np.cumsum(counts)
        self._ranges = object_store.RangeReader(store, PROBE)
        self._opened: dict[int, _File] = {}
        # The files in memory, by their descriptors.
        self._descriptors = [os.memfd_create(name) for name in files]
        for descriptor, size in zip(self._descriptors, self._sizes, strict=True):
            os.truncate(descriptor, size)
        self._source = ArrayRecordDataSource([
            f"/proc/self/fd/{descriptor}[0:{count}]"
            for descriptor, count in zip(self._descriptors, counts, strict=True)])
        self._opening, self._lock = threading.Lock(), threading.Lock()

    def __del__(self):
        for descriptor in getattr(self, "_descriptors", ()):
            os.close(descriptor)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, record: int) -> bytes:
        return self.__getitems__([record])[0]

    def __getitems__(self, records: Sequence[int]) -> list[bytes]:
        """Reads records, by concurrent requests.

        Raises:
          Damaged: a file is missing, or its index is damaged.
          RunFault: the store failed until the retries ended.
          Exception: a record is damaged, as the library raises.
        """
        numbers = np.searchsorted(self._ends, records, side="right")
        with self._opening:
            self._open([number for number in np.unique(numbers).tolist() if number not in self._opened])
        ranges = []
        for number, record in zip(numbers.tolist(), records, strict=True):
            bounds = self._opened[number].bounds
            at = record - (int(self._ends[number - 1]) if number else 0)
            ranges.append((number, int(bounds[at]), int(bounds[at + 1])))
        contents = self._read([(self._names[number], *bounds) for number, *bounds in ranges])
        with self._lock:
            for (number, start, stop), content in zip(ranges, contents, strict=True):
                self._opened[number].content[start:stop] = content
            try:
                return self._source.__getitems__(records)
            finally:
                for number, start, stop in ranges:
                    content, kept, _ = self._opened[number]
                    start, stop = start - start % mmap.PAGESIZE, min(-(-stop // mmap.PAGESIZE) * mmap.PAGESIZE, kept)
                    if start < stop:
                        content.madvise(mmap.MADV_REMOVE, start, stop - start)

    def _read(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        try:
            return remote.persistent(self.url, lambda: self._ranges.read(ranges))
        except remote.Refused as error:
            raise RunFault(f"{self.url} cannot be read: {error}; run again when the store can be reached, which "
                           "continues from the last checkpoint") from error

    def _open(self, numbers: Sequence[int]) -> None:
        """Reads the ends of files, none of which was read before."""
        if not numbers:
            return
        begins = [max(0, self._sizes[number] - 2 * BLOCK - INDEX_ENTRY * self._files[self._names[number]][1])
                  for number in numbers]
        ends = self._read([(self._names[number], begin, self._sizes[number])
                           for number, begin in zip(numbers, begins, strict=True)])
        for number, begin, end in zip(numbers, begins, ends, strict=True):
            name, (size, count) = self._names[number], self._files[self._names[number]]
            try:
                last = (size - 1) // BLOCK * BLOCK
                index = _varints(_chunk(end[last - begin:], last)[0])[1]
                if 0 <= index < begin:
                    end, begin = self._read([(name, index, begin)])[0] + end, index
                bounds = np.append(_positions(end[index - begin:], index, count), index)
                if bounds[0] < 0 or bounds[-1] > size or (np.diff(bounds) <= 0).any():
                    raise ValueError("positions that do not ascend")
            except RunFault:
                raise
            except Exception as error:  # of any type, as the bytes may be any
                raise Damaged("it is not the file that was written: its index cannot be read") from error
            kept = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            content = mmap.mmap(self._descriptors[number], size)
            content[begin:] = end
            self._opened[number] = _File(content, kept, bounds)


def _positions(content: bytes, position: int, count: int) -> np.ndarray:
    """Returns the positions of the records, int64[n], of the index at a position."""
    records, sizes = _chunk(content, position)
    entries = _varints(records[sizes[0]:]).reshape(count, 6)  # after the file's properties: three fields a record
    if (entries[:, ::2] != [0x08, 0x10, 0x18]).any() or (entries[:, 5] != 1).any():
        raise ValueError("no index of single records")
    return entries[:, 1]


def _chunk(content: bytes, position: int) -> tuple[bytes, np.ndarray]:
    """Returns (the records, one after another; their sizes) of the chunk at a position, from where `content` begins."""
    plain = bytearray(content)
    for header in reversed(range(-position % BLOCK, len(content), BLOCK)):
        del plain[header : header + BLOCK_HEADER]
    size = int.from_bytes(plain[8:16], "little")
    data = memoryview(plain)[CHUNK_HEADER : CHUNK_HEADER + size]
    length, at = _varint(data, 1)
    sizes, records = (_decompressed(part, data[0]) for part in (data[at : at + length], data[at + length:]))
    return records, _varints(sizes)


def _decompressed(data: memoryview, compression: int) -> bytes:
    if compression == 0:
        return bytes(data)
    if compression != ord("z"):
        raise ValueError("a compression other than zstd")
    size, at = _varint(data, 0)
    return pyarrow.decompress(data[at:], size, "zstd", asbytes=True)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns (the number at a position, the position after it)."""
    end = at + next(i for i, byte in enumerate(data[at : at + 10], 1) if byte < 128)
    return int(_varints(data[at:end])[0]), end


def _varints(data: bytes | memoryview) -> np.ndarray:
    """Decodes numbers, int64, each of seven bits a byte, the lowest first."""
    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values < 128)
    begins = np.append(0, ends[:-1] + 1)
    shifts = 7 * (np.arange(len(values)) - np.repeat(begins, ends - begins + 1))
    return np.add.reduceat((values & 127).astype(np.int64) << shifts, begins)
