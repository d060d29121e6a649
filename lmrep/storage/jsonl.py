"""Appends to files of one JSON object per line."""

import contextlib
import errno
import json
import os
from pathlib import Path

from lmrep.core.errors import RunFault


class JsonLines:
    """A file of one JSON object per line, open for appending. Opening it removes an incomplete last line."""

    def __init__(self, path: Path):
        # Unbuffered, so that a write that failed on a full disk is not repeated when the file is closed.
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (stays open until `close`)
        self._file.seek(0)
        content = self._file.read()
        if content and not content.endswith(b"\n"):  # never truncate what another process is appending
            self._file.truncate(content.rfind(b"\n") + 1)

    def write(self, record: dict) -> None:
        """Appends a line. Raises OSError if the disk is full, and ValueError for NaN and infinities."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        """Waits until the lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def append(path: Path, record: dict) -> None:
    """Appends a line to a file of JSON objects and flushes it to the disk. Raises RunFault if that fails."""
    try:
        with contextlib.closing(JsonLines(path)) as file:
            file.write(record)
            file.flush()
    except OSError as error:
        raise RunFault(f"{path} cannot be written: {error.strerror}") from error
