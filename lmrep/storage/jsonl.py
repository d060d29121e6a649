"""Files of one JSON object a line, to which lines are added."""

import contextlib
import errno
import json
import os
from pathlib import Path

from lmrep.core.errors import RunFault


class JsonLines:
    """A file of one JSON object a line, opened for adding; a last line that a kill tore is cut off first."""

    def __init__(self, path: Path):
        # Unbuffered: what a full disk refuses must not be tried again when the file is closed.
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (stays open until `close`)
        self._file.seek(0)
        found = self._file.read()
        if found and not found.endswith(b"\n"):  # else nothing is cut that another process adds meanwhile
            self._file.truncate(found.rfind(b"\n") + 1)

    def write(self, record: dict) -> None:
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def append(path: Path, record: dict) -> None:
    """Adds a line to a file of JSON objects, and returns when it is on the disk. Raises RunFault where that fails."""
    try:
        with contextlib.closing(JsonLines(path)) as file:
            file.write(record)
            file.flush()
    except OSError as error:
        raise RunFault(f"{path} cannot be written: {error.strerror}") from error
