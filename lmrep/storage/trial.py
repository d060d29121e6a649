"""A small save and restore in a new workdir, before a run spends hours on parameters that it could not keep."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import remove_leftovers, temporary_name
from lmrep.storage import orbax
from lmrep.storage.checkpoints import Checkpoints

NAME = "trial"


def check_name(directory: Path) -> None:
    """Refuses a directory whose path TensorStore, which writes the arrays of checkpoints, takes for another one.

    Raises:
      UserError: the path has a backslash, a part such as `gs:`, or bytes that are not UTF-8.
    """
    path = str(directory.absolute())
    valid = path.encode(errors="replace").decode() == path  # not a lone surrogate, which stands for such a byte
    if not valid or "\\" in path or re.search(r"/[a-z][a-z0-9+.-]*:/", path):
        shown = path if valid else ascii(path)[1:-1]
        raise UserError(f"the workdir {shown} cannot hold checkpoints: a part of its path has a backslash, "
                        "ends in a colon, or is not UTF-8; give another --workdir")


def try_checkpoint(directory: Path) -> None:
    """Saves a small checkpoint below `directory`, reads it, and removes it with the directories that were made for it.
    Only this process calls it.

    Raises:
      UserError: `directory` cannot be used as a workdir.
      RunFault: the checkpoint cannot be saved, or is not read as it was saved.
    """
    check_name(directory)
    state = {"array": np.arange(6, dtype=np.float32).reshape(2, 3)}
    folder = directory / "checkpoints"
    remove_leftovers(folder / NAME)
    with _made(folder), contextlib.closing(Checkpoints(folder / temporary_name(NAME))) as checkpoints:
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


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """`directory`, with the missing ones above it; removed again where they are empty."""
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
