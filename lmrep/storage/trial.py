"""Checks that a workdir can hold checkpoints, by a small save and restore and its free space, before a run trains."""

import contextlib
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import remove_leftovers, temporary_name
from lmrep.core.messages import byte_size
from lmrep.core.params import Tree
from lmrep.storage import orbax
from lmrep.storage.checkpoints import Checkpoints

NAME = "trial"
METADATA = 1_000  # bytes, at least, that Orbax writes for each array: its shape, sharding, chunks, checksum


def try_checkpoint(directory: Path) -> None:
    """Saves a small checkpoint below `directory`, reads it, and removes it with the directories that it made. Other
    processes need not call it.

    Raises:
      UserError: `directory` cannot be used as a workdir.
      RunFault: the checkpoint cannot be saved, or differs when it is read.
    """
    path = str(directory.absolute())  # which TensorStore, that writes the arrays, may read in another way
    valid = path.encode(errors="replace").decode() == path  # Python decodes a byte that is not UTF-8 as a surrogate
    if not valid or "\\" in path or re.search(r"/[a-z][a-z0-9+.-]*:/", path):
        raise UserError(f"the workdir {path if valid else ascii(path)[1:-1]} cannot hold checkpoints: a part of its "
                        "path has a backslash, ends in a colon, or is not UTF-8; give another --workdir")
    state = {"array": np.arange(6, dtype=np.float32).reshape(2, 3)}
    folder = directory / "checkpoints"
    remove_leftovers(folder / NAME)
    with _temporary(folder), contextlib.closing(Checkpoints(folder / temporary_name(NAME))) as checkpoints:
        try:
            checkpoints.save(0, state, {})
            checkpoints.wait()
            saved, _ = checkpoints.read(0)
        except RunFault as error:
            reason = orbax.reason(error.__cause__ or error)
            raise RunFault(f"the workdir {directory} cannot hold checkpoints: {reason}; fix that, or give another "
                           "--workdir") from error
        finally:
            shutil.rmtree(checkpoints.directory, ignore_errors=True)
        if not np.array_equal(saved["array"], state["array"]):
            raise RunFault(f"a small checkpoint in {directory} is not read as it was saved; give another --workdir")


def checkpoint_size(state: Tree) -> int:
    """Estimates the bytes of a checkpoint of `state`, a tree of arrays or jax.ShapeDtypeStruct."""
    return sum(math.prod(x.shape) * x.dtype.itemsize + METADATA for x in jax.tree.leaves(state))


def space(directory: Path) -> tuple[int, int]:
    """Returns the free bytes and the device number of the file system of `directory`, which need not exist."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free, existing.stat().st_dev


def check_space(directory: Path, needed: int) -> None:
    """Checks that a checkpoint of `needed` bytes fits on the file system of the workdir `directory`. The remains of
    killed saves and deletions count as free.

    Raises:
      RunFault: the checkpoint does not fit.
    """
    remains = (path for folder in (directory / "checkpoints").glob(".*") for path in folder.rglob("*"))
    free = space(directory)[0] + sum(path.stat().st_size for path in remains if path.is_file())
    if free < needed:
        raise RunFault(f"the workdir {directory} has no room for a checkpoint: parameters and optimizer state need "
                       f"{byte_size(needed)}, and {byte_size(free)} are free; free space, or give another --workdir")


@contextlib.contextmanager
def _temporary(directory: Path) -> Iterator[None]:
    """Makes `directory` and its missing parents, and removes those that it made at the end, if they are empty."""
    missing = [path for path in (directory, *directory.absolute().parents) if not os.path.lexists(path)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the workdir {directory.parent} cannot be used: {error.strerror}: {directory}; give another "
                        "--workdir") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
