"""Handles standard streams that are closed or full, or whose reader has ended."""

import contextlib
import io
import os
import sys

from lmrep.core.errors import RunFault


def prepare_streams() -> None:
    """Replaces closed streams by the null device, and makes open ones escape characters that their encoding lacks.

    A closed stream is None, and the next file that is opened would get its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
        elif name == "stderr":
            stream.reconfigure(errors="backslashreplace")
        elif name == "stdout":
            sys.stdout = io.TextIOWrapper(
                io.BufferedWriter(_StandardOutput(stream.fileno(), "w", closefd=False)), stream.encoding,
                "backslashreplace", line_buffering=stream.line_buffering or stream.write_through)


class _StandardOutput(io.FileIO):
    """Standard output, whose failures are `RunFault`s that name it."""

    def write(self, data):
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _to_null_device(self)
            raise RunFault(f"standard output cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    """Prints a line on standard error. A failure is ignored: the exit code still tells of an error."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _to_null_device(sys.stderr)


def leave() -> None:
    """Flushes both streams, or drops what they do not accept, so that the process ends with the command's exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, RunFault):
            _to_null_device(stream)


def _to_null_device(stream) -> None:
    """Redirects a stream, so that no later write to it fails, including the last one when the process ends."""
    with contextlib.suppress(OSError):  # of a test, which has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
