"""Tables of spans on disk, so that a format builds each once and processes share it."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lmrep.core import sealed_cache
from lmrep.core.components import type_of
from lmrep.core.errors import Broken
from lmrep.core.files import Damaged, manifest
from lmrep.data.formats.base import Spans
from lmrep.data.store.offsets import growing_array


def cached(build: Callable[[], Iterable[Spans]], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """Returns the table that an earlier call with this fingerprint wrote to `cache_dir`, or builds it. A table that
    does not match its manifest is logged and built again.

    Args:
      build: returns consecutive chunks of the table.
      fingerprint: a hash of everything that the table depends on.
      cache_dir: where tables are stored and memory-mapped, so that no more than a chunk is in memory; None: the table
        is built in memory.

    Raises:
      Broken: a chunk is not `Spans`, or its arrays do not fit each other.
      RunFault: the table cannot be written, or is damaged again each time.
    """
    if cache_dir is None:
        chunks = list(_arrays(build()))
        return _spans({name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]})
    return sealed_cache.cached(Path(cache_dir) / f"plan-{fingerprint}", lambda directory: _save(
        build(), directory), _load, {"plan": fingerprint}, "the plan")


def _arrays(chunks: Iterable[Spans]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of each chunk, whose offsets count the spans of the whole table. Raises Broken for one whose
    arrays do not fit each other: examples would hold other text."""
    begin = total = 0
    for chunk in chunks:
        if not isinstance(chunk, Spans):
            raise Broken(f"its spans give {type_of(chunk)}; expected Spans of lmrep.data.formats.base")
        examples, spans = len(chunk.offsets) - 1, len(chunk.starts)
        for name, value, expected in (
                ("offsets[0]", chunk.offsets[0], 0), ("offsets[-1]", chunk.offsets[-1], spans),
                ("len(lengths)", len(chunk.lengths), spans),
                *((f"len(columns[{name!r}])", len(column), examples) for name, column in chunk.columns.items())):
            if value != expected:
                raise Broken(f"its Spans have offsets of {examples:,} examples and starts of {spans:,} spans, and "
                             f"{name} is {value:,}; expected {expected:,}")
        yield {"offsets": chunk.offsets[begin:] + total, "starts": chunk.starts, "lengths": chunk.lengths,
               **chunk.columns}
        begin, total = 1, total + spans


def _spans(arrays: dict[str, np.ndarray]) -> Spans:
    return Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)


def _save(chunks: Iterable[Spans], directory: Path) -> None:
    """Writes the arrays of a table."""
    with contextlib.ExitStack() as stack:
        files = {}
        for arrays in _arrays(chunks):
            for name, array in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context(growing_array(directory / f"{name}.npy", array.dtype))
                files[name](array)


def _load(directory: Path) -> Spans:
    """Opens the memory-mapped table in `directory`, whose files were verified. Raises Damaged if the files are not the
    arrays of a table."""
    try:
        return _spans({Path(name).stem: np.asarray(np.load(directory / name, mmap_mode="r", allow_pickle=False))
                       for name in manifest(directory)["files"]})
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise Damaged(f"an array cannot be read ({error})") from error
