"""Arrays in files of the format zarr3, of which each process writes and reads its own shards, by TensorStore.

    FOLDER/params/encoder/kernel/c/0/1      the second shard of the first row of the grid of shards

A file is the shard of one device, or an equal part of it (`Grid.block`). It is a shard of the zarr3 codec
`sharding_indexed`: chunks of a quarter of a megabyte, each with its CRC-32C, behind an index of their offsets. A
changed bit or a missing file is an error when it is read, and another mesh reads the byte ranges of the chunks that it
needs. There is no zarr.json: the manifest of the checkpoint has the dtypes, shapes and grids of all arrays.

TensorStore has drivers for `gs://`, `s3://` and local folders. In other stores, fsspec transfers whole files, which
TensorStore encodes and decodes in memory.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorstore as ts

from lmrep.core.object_store import DAMAGE, SECONDS, errors
from lmrep.core.remote import Store, transfer
from lmrep.storage.manifests import abstract_array

FILE, CHUNK = 2**26, 2**18  # most bytes of a file and of a chunk

Region = tuple[slice, ...]  # of an array, with starts and stops


class Grid(NamedTuple):
    """How an array is cut into files and chunks."""

    block: list[int]  # shape of the part in one file
    chunk: list[int]  # shape of the parts of it that have a checksum each


class Piece(NamedTuple):
    """The content of one file."""

    path: str  # of the array
    region: Region
    value: np.ndarray


def grid(x: Any) -> Grid:
    """Returns the grid for an array of the state: files are shards of its devices."""
    shape = x.sharding.shard_shape(x.shape) if isinstance(x, jax.Array) else x.shape
    block = _cut(shape, max(1, FILE // x.dtype.itemsize))
    return Grid(block, _cut(block, max(1, CHUNK // x.dtype.itemsize)))


def _cut(shape: Sequence[int], limit: int) -> list[int]:
    """Returns the shape of equal blocks of at most `limit` elements, or more if the axes have no small factors. All
    axes are cut into about as many parts, so that a mesh that cuts any of them reads few elements that it does not
    need."""
    block = list(shape)
    while math.prod(block) > limit:
        factors = {i: d for i, n in enumerate(block) if (d := next((d for d in range(2, 32) if n % d == 0), 0))}
        if not factors:
            break
        axis = min(factors, key=lambda i: (shape[i] // block[i], -block[i]))
        block[axis] //= factors[axis]
    return block


def copied(arrays: Mapping[str, Any], grids: Mapping[str, Grid]) -> dict[int, Piece]:
    """Copies to the host what this process writes of the arrays of a state, one replica of each shard, and returns it
    by number."""
    shards = {path: [*_written_here(x)] for path, x in arrays.items() if x.size}
    for _, data in itertools.chain(*shards.values()):
        if isinstance(data, jax.Array):
            data.copy_to_host_async()
    pieces = []
    for path, written in shards.items():
        block = grids[path].block
        for index, data in written:
            value = np.asarray(data)
            if value is data or not value.flags.owndata:  # not a copy: on a CPU, of the array that a step may overwrite
                value = value.copy()
            corner = [s.start for s in _region(index, arrays[path].shape)]
            for at in np.ndindex(*(n // b for n, b in zip(value.shape, block, strict=True))):
                inner = tuple(slice(i * b, (i + 1) * b) for i, b in zip(at, block, strict=True))
                region = tuple(slice(c + s.start, c + s.stop) for c, s in zip(corner, inner, strict=True))
                pieces.append(Piece(path, region, value[inner]))
    return dict(enumerate(pieces))


def _written_here(x: Any) -> Iterator[tuple[Region, Any]]:
    """Yields (index, data) of the shards of an array that this process writes. Arrays that each process has for itself
    are written by process 0."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable and jax.process_count() > 1):
        yield from ((shard.index, shard.data) for shard in x.addressable_shards if shard.replica_id == 0)
    elif jax.process_index() == 0:
        yield (slice(None),) * x.ndim, x


def _region(index: Region, shape: Sequence[int]) -> Region:
    return tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, shape, strict=True))


class Arrays:
    """The arrays in a folder.

    Args:
      types: their dtypes and shapes, by path: see `manifests.array_type`.
      grids: their grids, by path.
      folder: a local folder, or one in `store`.
      store: the store; None for a local folder.
      spec: of the store, by `object_store.native`; None if fsspec transfers the files.
    """

    def __init__(self, types: Mapping[str, str], grids: Mapping[str, Grid], folder: str, store: Store | None = None,
                 spec: Mapping[str, Any] | None = None):
        self._types = {path: abstract_array(text) for path, text in types.items()}
        self._grids, self._folder, self._store = grids, folder, store
        self._spec = {"driver": "file", "path": ""} if store is None else spec

    def shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of an array."""
        return self._types[path].shape

    def write(self, piece: Piece) -> None:
        """Writes one file. Raises OSError if the store fails."""
        memory, context = (None, None) if self._spec else _memory()
        with errors():
            self._open(piece.path, context)[piece.region].write(
                piece.value, can_reference_source_data_indefinitely=True).result(_seconds(piece.value.nbytes))
        for name in memory.list().result() if memory else ():
            self._store.write(name.decode(), memory[name])

    def read(self, path: str, index: Region | None = None) -> np.ndarray:
        """Reads a region of an array, by default all of it.

        Raises:
          Damaged: a file of it is missing or changed.
          OSError: the store fails.
        """
        abstract, (block, _) = self._types[path], self._grids[path]
        region = _region(index or (slice(None),) * len(abstract.shape), abstract.shape)
        shape = [s.stop - s.start for s in region]
        if not abstract.size:
            return np.empty(shape, abstract.dtype)
        memory, context = (None, None) if self._spec else _memory()
        files = (range(s.start // b, -(-s.stop // b)) for s, b in zip(region, block, strict=True))
        for at in itertools.product(*files) if memory else ():
            name = "/".join([self._folder, path, "c", *map(str, at)])
            if content := self._store.read(name):
                memory[name] = content
        with errors(DAMAGE):
            size = math.prod(shape) * abstract.dtype.itemsize
            return self._open(path, context)[region].read().result(_seconds(size))

    def _open(self, path: str, context: ts.Context | None) -> ts.TensorStore:
        abstract, (block, chunk) = self._types[path], self._grids[path]
        spec = self._spec or {"driver": "memory", "path": ""}
        bytes_, checksum = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}
        return ts.open({
            "driver": "zarr3", "kvstore": {**spec, "path": f"{spec['path']}{self._folder}/{path}/"},
            "store_data_equal_to_fill_value": True, "fill_missing_data_reads": False, "metadata": {
                "shape": abstract.shape, "data_type": abstract.dtype.name,
                "fill_value": np.zeros((), abstract.dtype).tolist(),
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": block}},
                "codecs": [{"name": "sharding_indexed", "configuration": {
                    "chunk_shape": chunk, "codecs": [bytes_, checksum], "index_codecs": [bytes_, checksum],
                    "index_location": "start"}}]},
        }, open=True, assume_metadata=True, context=context).result()


def _seconds(size: int) -> float:
    """Returns the longest time for reading or writing `size` bytes."""
    return SECONDS + size / 2**20


def _memory() -> tuple[ts.KvStore, ts.Context]:
    context = ts.Context()
    return ts.KvStore.open({"driver": "memory"}, context=context).result(), context


def load(arrays: Arrays, shardings: Mapping[str, jax.sharding.Sharding | None], values: dict[str, Any]) -> None:
    """Reads arrays into `values`, by path, except those that are there. This process reads its shards of a sharding,
    each once, and of None the whole, as a numpy array. Raises as `Arrays.read`."""

    def one(path: str) -> None:
        regions: dict[str, np.ndarray] = {}

        def read(index: Region) -> np.ndarray:
            if str(index) not in regions:
                regions[str(index)] = arrays.read(path, index)
            return regions[str(index)]

        sharding = shardings[path]
        values[path] = arrays.read(path) if sharding is None else jax.make_array_from_callback(
            arrays.shape(path), sharding, read)

    transfer(one, [path for path in shardings if path not in values])
