"""Writers of one-dimensional arrays of any size as .npy files, chunk by chunk."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np


def save_offsets(path: pathlib.Path, parts: Iterable[np.ndarray]) -> None:
    """Writes the offsets 0, l0, l0 + l1, ... of the lengths l0, l1, ... in `parts`, consecutive int64 arrays."""
    with growing_array(path, np.dtype(np.int64)) as append:
        total = np.zeros(1, np.int64)
        append(total)
        for lengths in parts:
            append(total + np.cumsum(lengths))
            total += lengths.sum()


@contextlib.contextmanager
def growing_array(path: pathlib.Path, dtype: np.dtype) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that appends to the .npy file of a one-dimensional array. It raises OSError if the disk is
    full, where writing to a memory map would end the process."""
    count = 0

    def write_header() -> None:  # again when the size is known; numpy reserves enough space for that
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (count,)})

    def append(array: np.ndarray) -> None:
        nonlocal count
        file.write(np.ascontiguousarray(array, dtype).data)
        count += len(array)

    with path.open("wb") as file:
        write_header()
        yield append
        write_header()
