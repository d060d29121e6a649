"""How checkpoints use Orbax: its options, and less of what it prints."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from etils import epath

ALONE = ocp.options.MultiprocessingOptions(primary_host=None)  # every process has a directory of its own


class LiteralPath(type(epath.Path("/"))):
    """A local path for Orbax. Its `glob` matches the pattern alone. The one of etils 1.15 takes `[`, `*` and `?` in the
    names of the directories above for wildcards too, so that Orbax finds no files to merge and saves nothing readable.
    """

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        return map(type(self), Path(self).glob(pattern))


def checkpointer(shared: bool) -> ocp.AsyncCheckpointer:
    """A checkpointer for a directory that all processes share, or for one of this process alone, which gets only its
    shards: see `merge_processes`."""
    _silence()
    # Compression would save 8 % of float parameters, and take cores from the training.
    if shared or jax.process_count() == 1:
        return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=ALONE)
    handler.finalize = lambda directory: None  # it would miss the files of the other processes
    return ocp.AsyncCheckpointer(handler, multiprocessing_options=ALONE)


def merge_processes(directory: Path) -> None:
    """Makes one OCDBT database of those that processes have written to directories of their own, once all are in
    `directory`. Does nothing if that is done. (Only a B-tree is written, that refers to the arrays.)"""
    if any(directory.glob("ocdbt.process_*")) and not (directory / "manifest.ocdbt").exists():
        ocp.PyTreeCheckpointHandler(multiprocessing_options=ALONE).finalize(LiteralPath(directory))


def reason(error: BaseException) -> str:
    """Why Orbax or TensorStore failed: what the system says, if it is an error of the system. TensorStore's messages
    are long, and end with details such as [os_error_code='28'], in any order."""
    cause = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return cause.strerror or os.strerror(cause.errno)
        if code := re.search(r"\[os_error_code='(\d+)'\]", str(cause)):
            return os.strerror(int(code[1]))
        cause = cause.__cause__ or cause.__context__
    text = re.split(r" \[\w+='", str(error))[0].strip()
    last = text.splitlines()[-1] if text else "no reason given"
    return last if type(error) is ValueError and text else f"{type(error).__name__}: {last}"


def _silence() -> None:
    """Suppresses the tracebacks that Orbax prints when a write fails, one for each array still being written: the
    RunFault that follows says the same in one message."""
    logging.getLogger("absl").addFilter(_is_useful)
    previous = sys.unraisablehook

    def hook(unraisable) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            previous(unraisable)

    if getattr(previous, "__module__", None) != __name__:
        sys.unraisablehook = hook


def _is_useful(record: logging.LogRecord) -> bool:
    if f"{os.sep}orbax{os.sep}" not in record.pathname:
        return True
    return record.levelno < logging.ERROR and "primary_host=None" not in str(record.msg)
