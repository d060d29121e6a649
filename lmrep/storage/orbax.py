"""Saves and loads arrays by Orbax, and suppresses some of its output."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from lmrep.core.params import flatten, unflatten
from lmrep.storage.manifests import abstract_array

ALONE = ocp.options.MultiprocessingOptions(primary_host=None)  # every process has a separate directory


class LiteralPath(type(epath.Path("/"))):
    """A local path for Orbax, whose `glob` takes wildcards from the pattern only. That of etils 1.15 also expands `[`,
    `*` and `?` in the names of the parent directories, so that Orbax merges no files and the save is unreadable."""

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        return map(type(self), Path(self).glob(pattern))


def checkpointer(shared: bool) -> ocp.AsyncCheckpointer:
    """Makes a checkpointer for a directory that all processes share, or (not `shared`) one that reads a copy of this
    process alone."""
    _silence()
    # Compression would save 8 % of float parameters, and take cores from the training.
    options = ocp.options.MultiprocessingOptions() if shared or jax.process_count() == 1 else ALONE
    return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(
        use_compression=False, multiprocessing_options=options), multiprocessing_options=options)


def save(checkpointer: ocp.AsyncCheckpointer, directory: Path, arrays: Mapping[str, Any]) -> None:
    """Starts to save arrays by their paths, which may change once it returns. Orbax refuses empty arrays, so they are
    left out: the manifest has their shape and dtype."""
    tree = unflatten({path: x for path, x in arrays.items() if x.size})
    checkpointer.save(LiteralPath(directory), args=ocp.args.PyTreeSave(tree))


def load(
    checkpointer: ocp.AsyncCheckpointer, directory: Path, arrays: Mapping[str, str],
    shardings: Mapping[str, jax.sharding.Sharding | None],
) -> dict[str, Any]:
    """Reads the arrays at the paths of `arrays` ({path: dtype and shape}), with these shardings, or (None) as numpy
    arrays. Raises OSError and ValueError as Orbax does; `reason` explains them."""
    abstract = {path: abstract_array(text) for path, text in arrays.items()}
    filled = {path: x for path, x in abstract.items() if x.size}
    restore_args = {
        path: ocp.RestoreArgs(restore_type=np.ndarray) if shardings[path] is None else ocp.ArrayRestoreArgs(
            sharding=shardings[path], global_shape=x.shape, dtype=x.dtype) for path, x in filled.items()}
    request = ocp.args.PyTreeRestore(
        item=unflatten(filled), restore_args=unflatten(restore_args), partial_restore=True)
    values = flatten(checkpointer.restore(LiteralPath(directory), args=request)) if filled else {}
    for path in abstract.keys() - filled.keys():
        empty, sharding = np.zeros(abstract[path].shape, abstract[path].dtype), shardings[path]
        values[path] = jnp.zeros_like(empty, device=sharding) if sharding else empty
    return values


def merge_processes(directory: Path) -> None:
    """Merges the OCDBT databases that processes have written to separate directories, in earlier versions for a remote
    store, by writing a B-tree that refers to their arrays. Does nothing if they are merged."""
    if any(directory.glob("ocdbt.process_*")) and not (directory / "manifest.ocdbt").exists():
        ocp.PyTreeCheckpointHandler(multiprocessing_options=ALONE).finalize(LiteralPath(directory))


def reason(error: BaseException) -> str:
    """Explains in one line why Orbax or TensorStore failed: by the system's text for its error, if there is one.
    TensorStore's messages are long, and end with details such as [os_error_code='28'], in any order."""
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
    """Suppresses the tracebacks that Orbax prints when a write fails, one for each array still being written. The
    RunFault that follows gives the cause."""
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
