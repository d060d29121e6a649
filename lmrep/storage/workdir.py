"""The directory of a run: its lock, its config.json, and new directories that are complete or absent."""

import contextlib
import fcntl
import functools
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmrep.config import json_files
from lmrep.core import files, remote
from lmrep.core.errors import RunFault, UserError

LOCK = ".lock"
LOCK_TEXT = re.compile(rb"\s*(process \d+ on [^\n]*\n?)?\Z")  # the content of a lock; empty if the disk was full
PATIENCE, POLL = 3600.0, 0.1  # seconds that `exclusive` waits for another process, and between two attempts

log = logging.getLogger(__name__)

_held: set[int] = set()  # descriptors of the locks that this process holds


def _release_in_child() -> None:
    # A forked child shares the parent's open file and its lock, which would then outlive a killed parent.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
    """Makes `workdir` if necessary, and locks it for this process within the context.

    The kernel releases the lock when the process ends for any reason; child processes never hold it. In a run of
    several processes, one of them takes it.

    Raises:
      UserError: another run holds the lock (the message names its process, host and start), or `workdir` cannot be made
        or locked.
    """
    path = Path(workdir) / LOCK
    with _locked(path, 0.0, lambda why: f"the workdir {workdir} cannot be used: {why}; give another --workdir",
                 lambda process: f"the workdir {workdir} is in use by {process}; wait for that run, stop it, or give "
                                 "another --workdir") as descriptor:
        if not LOCK_TEXT.match(os.pread(descriptor, 4096, 0)):
            raise UserError(f"{path} is not a lock of lmrep; give another --workdir")
        started = time.strftime("%Y-%m-%d %H:%M:%S %z")
        with contextlib.suppress(OSError):  # used in the message above only; the disk may be full
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, started {started}\n".encode(), 0)
        yield


@contextlib.contextmanager
def exclusive(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Locks the file `path` within the context, so that one process at a time enters it. Its content stays.

    Raises:
      UserError: the file cannot be locked, or another process holds the lock for more than `patience` seconds.
    """
    with _locked(path, patience, lambda why: f"{path} cannot be locked: {why}",
                 lambda process: f"{path} has been locked by {process} for {patience:g} s; wait for that process, or "
                                 "stop it"):
        yield


@contextlib.contextmanager
def _locked(
    path: Path, patience: float, unusable: Callable[[str], str], in_use: Callable[[str], str]
) -> Iterator[int]:
    """Opens and locks a file, and yields its descriptor. Raises UserError: `unusable(reason)` if it cannot be opened,
    `in_use(process)` if another process still holds the lock after `patience` seconds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = files.open_lock(path)
    except OSError as error:
        raise UserError(unusable(error.strerror)) from error
    _held.add(descriptor)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    process = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
                    raise UserError(in_use(process or "another process")) from None
                time.sleep(POLL)
            except OSError as error:
                raise UserError(
                    f"{path} cannot be locked: {error.strerror}; use a file system that supports locks") from error
        yield descriptor
    finally:
        # In a forked child, the descriptor is closed already and its number may belong to another file.
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)


def holder(workdir: str | os.PathLike) -> str | None:
    """Returns the text that names the process that holds the lock of a workdir; None if it is free. Changes no file."""
    try:
        file = open(Path(workdir) / LOCK)  # noqa: SIM115 - closed below
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(4096).strip() or "another process"
    return None


def check_free(target: Path) -> None:
    """Raises UserError if `target` is remote, not empty, or cannot be made."""
    if url := remote.as_url(target):
        raise UserError(f"{url} is in a remote store; give a local directory, and copy it there")
    if os.path.realpath(target) == os.path.realpath("."):  # unlike Path.resolve, not an error for a loop of links
        raise UserError(f"{target} is the current directory; give another one")
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists already; give a new or an empty directory")
    parent = next(path for path in target.absolute().parents if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise UserError(f"{target} cannot be made: {parent} is not a writable directory")


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yields a new directory that becomes `target` when the block ends, or is removed if the block fails. Removes
    leftovers of killed processes.

    Raises:
      UserError: as `check_free`, before the block.
      RunFault: the directory cannot be written.
    """
    check_free(target)
    target = Path(os.path.realpath(target))
    files.remove_leftovers(target)
    try:
        with files.atomic_directory(target) as temporary:
            yield temporary
    except OSError as error:
        raise RunFault(f"{target} cannot be written: {error.strerror or error}; nothing is there") from error


CONFIG, SIGNATURE = "config.json", "sha256"
SWEEP = "sweep.json"  # of the directory of a sweep


class Fingerprints(TypedDict):
    """Fingerprints of the tokenizer and the splits of a run."""

    tokenizer: Any
    train: NotRequired[Any]


class Config(TypedDict):
    """The fields of a run's config that this package reads."""

    checkpoint: NotRequired[dict[str, Any]]
    evaluation: NotRequired[dict[str, Any]]


class Start(TypedDict):
    """What a converted model from left to right read before a document."""

    before: list[int]  # ids that other libraries put before a text
    document: int | None  # the id before a document's first token in training


class RunRecord(TypedDict):
    """config.json of a workdir."""

    config: Config
    data: Fingerprints
    source: NotRequired[Any]
    saved: NotRequired[bool]  # whether `lmrep.save` wrote it
    start: NotRequired[Start]  # of a converted checkpoint whose files say it


def check_not_published(directory: str | os.PathLike) -> None:
    """Raises UserError if the config.json in a directory belongs to a published checkpoint."""
    try:
        content = json_files.read(dict[str, Any], Path(directory) / CONFIG) or {}
    except UserError:  # damaged, or none
        return
    if "config" not in content and not {"model_type", "architectures"}.isdisjoint(content):
        raise UserError(f"{directory} holds a published checkpoint and is no workdir of a run; make one of it: "
                        f"lmrep convert {directory} runs/{os.path.basename(os.path.realpath(directory))}")


def write_config(directory: Path, record: Mapping[str, Any]) -> None:
    """Writes config.json: the record and its SHA-256."""
    content = {key: value for key, value in record.items() if key != SIGNATURE}
    files.write_json(directory / CONFIG, files.signed(content))


def read_config(directory: str | os.PathLike) -> RunRecord:
    """Reads a workdir's config.json: {"config": ..., "data": fingerprints}. Logs a warning if it has changed since
    lmrep wrote it.

    Raises:
      UserError: config.json does not exist, cannot be read or is damaged, or belongs to a published checkpoint.
    """
    path = Path(directory) / CONFIG
    advice = "restore it, or start again in another --workdir"
    content = json_files.read(dict[str, Any], path, advice)
    if content is None:
        if url := remote.as_url(directory):
            raise UserError(f"{url} is in a remote store, which this command does not read; copy the run to a local "
                            "directory")
        inside = [path.parent.name for path in sorted(Path(directory).glob(f"*/{CONFIG}"))]
        raise UserError(f"there is no run in {directory}: {CONFIG} is missing; give the --workdir of a run" + (
            f", such as {directory}/{inside[0]}, of {', '.join(inside)}" if inside else ""))
    check_not_published(directory)
    record = json_files.read(RunRecord, path, advice)
    signature = content.pop(SIGNATURE, None)  # runs of earlier versions have none
    if signature not in (None, files.digest(content)):
        _warn_of_change(str(path), files.digest(content))
    return {key: value for key, value in record.items() if key != SIGNATURE}


@functools.cache  # once for each content
def _warn_of_change(path: str, digest: str) -> None:
    log.warning("%s has changed since lmrep wrote it (its SHA-256 differs); if nobody has edited it, the file is "
                "damaged: restore it", path)
