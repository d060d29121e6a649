"""Tables of spans on disk, so that a format builds each once and processes share it."""

import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.files import Damaged, atomic_directory, seal, verified
from lmrep.data.formats.base import Spans

ATTEMPTS = 3  # to build a table that is damaged

log = logging.getLogger(__name__)


def cached(build: Callable[[], Iterable[Spans]], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """The table that `build` makes, or the one that an earlier call with this fingerprint left in `cache_dir`.

    Args:
      build: gives consecutive chunks of the table.
      fingerprint: of everything that the table depends on.
      cache_dir: where tables are kept and memory-mapped, so that no more than a chunk is in memory; None: the table is
        built in memory.

    A table that does not match its manifest is logged and built again.

    Raises:
      RunFault: the table cannot be written, or is damaged again each time.
    """
    if cache_dir is None:
        return _concatenate(list(build()))
    directory = Path(cache_dir) / f"plan-{fingerprint}"
    for _ in range(ATTEMPTS):  # another process may find the same damage, and remove what this one has written
        try:
            if not directory.exists():
                _save(build(), directory, fingerprint)
            return _load(directory, fingerprint)
        except Damaged as damage:
            log.warning("the plan in %s is damaged and will be built again: %s", directory, damage)
        except OSError as error:
            raise RunFault(f"cannot write the plan {directory}: {error}; free some space or name another "
                           "directory") from error
        _remove(directory)
    raise RunFault(f"the plan in {directory} was damaged {ATTEMPTS} times; check the disk, or name another directory")


def _concatenate(chunks: Sequence[Spans]) -> Spans:
    if len(chunks) == 1:
        return chunks[0]
    before = np.cumsum([0, *(len(chunk.starts) for chunk in chunks)])
    offsets = [chunk.offsets[:-1] + first for chunk, first in zip(chunks, before[:-1], strict=True)]
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    return Spans(np.concatenate([*offsets, before[-1:]]), np.concatenate([chunk.starts for chunk in chunks]),
                 np.concatenate([chunk.lengths for chunk in chunks]), columns)


def _save(chunks: Iterable[Spans], directory: Path, fingerprint: str) -> None:
    """Writes a table with a manifest. If another process has written the same one meanwhile, that one stays."""
    with atomic_directory(directory, keep_existing=True) as temporary:
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
        seal(temporary, {"plan": fingerprint})


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


def _load(directory: Path, fingerprint: str) -> Spans:
    """The memory-mapped table in `directory`, after its files were compared with the manifest.

    Raises:
      Damaged: they differ.
    """
    content = verified(directory)
    if content.get("plan") != fingerprint:
        raise Damaged("it is the table of another plan")
    try:
        arrays = {Path(name).stem: np.asarray(np.load(directory / name, mmap_mode="r", allow_pickle=False))
                  for name in content["files"]}
    except (OSError, ValueError) as error:
        raise Damaged(f"an array cannot be read ({error})") from error
    return Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)


def _remove(directory: Path) -> None:
    """Removes a table; the rename comes first, so that no other process finds a part of it."""
    temporary = _temporary(directory)
    try:
        directory.rename(temporary)
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        raise RunFault(f"cannot remove the damaged plan {directory}: {error}; delete it by hand") from error
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        temporary.unlink()


def _temporary(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}-{uuid.uuid4().hex[:8]}")
