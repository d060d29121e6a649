"""Tables of spans on disk, so that a format builds each once and processes share it."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.data.formats.base import Spans


def cached(build: Callable[[], Iterable[Spans]], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """The table that `build` makes, or the one that an earlier call with this fingerprint left in `cache_dir`.

    Args:
      build: gives consecutive chunks of the table.
      fingerprint: of everything that the table depends on.
      cache_dir: where tables are kept and memory-mapped, so that no more than a chunk is in memory; None: the table is
        built in memory.

    Raises:
      UserError: the files in the cache cannot be read.
      RunFault: they cannot be written.
    """
    if cache_dir is None:
        return _concatenate(list(build()))
    directory = Path(cache_dir) / f"plan-{fingerprint}"
    if not directory.exists():
        try:
            _save(build(), directory)
        except OSError as error:
            raise RunFault(f"cannot write the plan {directory}: {error}; free some space or name another folder") from error
    try:
        return _load(directory)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the plan in {directory} is damaged ({error}); delete this folder, and it is built anew") from error


def _concatenate(chunks: Sequence[Spans]) -> Spans:
    if len(chunks) == 1:
        return chunks[0]
    before = np.cumsum([0, *(len(chunk.starts) for chunk in chunks)])
    offsets = [chunk.offsets[:-1] + first for chunk, first in zip(chunks, before[:-1], strict=True)]
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    return Spans(np.concatenate([*offsets, before[-1:]]), np.concatenate([chunk.starts for chunk in chunks]),
                 np.concatenate([chunk.lengths for chunk in chunks]), columns)


def _save(chunks: Iterable[Spans], directory: Path) -> None:
    """Writes a table to a temporary directory and renames it once complete."""
    temporary = directory.with_name(f".{directory.name}-{uuid.uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        with contextlib.ExitStack() as stack:
            files, spans = {}, 0
            for chunk in chunks:
                first = chunk.offsets[:1] if not files else chunk.offsets[:0]
                arrays = {"offsets": np.append(first, chunk.offsets[1:] + spans), "starts": chunk.starts,
                          "lengths": chunk.lengths, **chunk.columns}
                for name, array in arrays.items():
                    if name not in files:
                        files[name] = stack.enter_context(_AppendableArray(temporary / f"{name}.npy", array.dtype))
                    files[name].append(array)
                spans += len(chunk.starts)
        try:
            temporary.rename(directory)
        except OSError:
            if not directory.exists():  # if it exists, another process has written the same table meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _AppendableArray:
    """A .npy file of a one-dimensional array that grows. The header is rewritten at the end, when the size is known;
    numpy reserves enough space for that."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._file, self._dtype, self._count = path.open("wb"), dtype, 0
        self._write_header()

    def append(self, array: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(array, self._dtype).data)
        self._count += len(array)

    def _write_header(self) -> None:
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": self._dtype.str, "fortran_order": False, "shape": (self._count,)})

    def __enter__(self) -> "_AppendableArray":
        return self

    def __exit__(self, error_type, *_) -> None:
        with self._file:
            if error_type is None:
                self._write_header()


def _load(directory: Path) -> Spans:
    arrays = {path.stem: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
              for path in sorted(directory.glob("*.npy"))}
    spans = Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)
    if not spans.offsets[-1] == len(spans.starts) == len(spans.lengths):
        raise ValueError("its arrays differ in length")
    return spans
