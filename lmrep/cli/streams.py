"""Standard streams that are closed, full, or of a reader that has left."""

import contextlib
import io
import os
import sys

from lmrep.core.errors import RunFault


def prepare() -> None:
    """Opens the null device in place of each closed stream, and escapes what the encoding of an open one lacks. A
    closed stream is None, and its descriptor would be given to the next file that is opened."""
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
    """A file whose failures name it."""

    def write(self, data):
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _to_null_device(self)
            raise RunFault(f"standard output cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    """Prints a line on standard error. Where that fails, the exit code alone tells of an error."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _to_null_device(sys.stderr)


def leave() -> None:
    """Writes out both streams, or drops what they do not take, so that the process ends with its own exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, RunFault):
            _to_null_device(stream)


def _to_null_device(stream) -> None:
    """Redirects a stream, so that no later write of it fails, that at the exit of the process included."""
    with contextlib.suppress(OSError):  # of a test, which has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
