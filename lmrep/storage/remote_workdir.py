"""Reads and trains runs whose workdirs are in remote stores (`gs://bucket/runs/x`).

    URL/config.json, metrics.jsonl, ...     uploaded completely whenever they have changed
    URL/checkpoints/                        see `remote_checkpoints`
    URL/lease.json                          see `lease`

    ~/.cache/lmrep/workdirs/HASH/run/x      the local directory for training (or under $LMREP_DATA_DIR, if set)
    ~/.cache/lmrep/workdirs/HASH/run-3/x    the copy of process 3, of several
    ~/.cache/lmrep/workdirs/HASH/read/x     a copy for other commands, which read checkpoints from the store

The store is authoritative: a run begins by downloading its files. If it is killed at any point it can continue on any
machine, because the logs up to a checkpoint are uploaded before the checkpoint becomes complete.
"""

import contextlib
import hashlib
import logging
import os
import posixpath
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from lmrep.core import hub, remote, remote_cache
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.host import default_data_dir
from lmrep.core.json_text import InvalidJSON, loads
from lmrep.core.paths import as_path
from lmrep.core.remote import Store
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed
from lmrep.storage import workdir
from lmrep.storage.checkpoints import UNFINISHED, Checkpoints
from lmrep.storage.lease import LEASE, Lease, LeaseLost
from lmrep.storage.remote_checkpoints import CHECKPOINTS, RemoteCheckpoints
from lmrep.storage.workdir import CONFIG

NOT_READ = ("tensorboard", "profile", "wandb")  # large, and not needed to continue a run
PUT = ("eval.json", "eval.jsonl")  # written only by `upload`, from any machine that evaluates
EVERY = 30.0  # seconds between uploads
LAST_PATIENCE = 60.0  # seconds of retries for the last upload

log = logging.getLogger(__name__)


def cache_dir(url: str) -> Path:
    """Returns the directory for local copies of the run at `url`."""
    return default_data_dir() / "workdirs" / hashlib.sha256(url.encode()).hexdigest()[:16]


def copy_dir(url: str, use: str = "run") -> Path:
    """Returns the local directory for a use of the run at `url`: that of process 0, which trains it, or another one."""
    return cache_dir(url) / use / posixpath.basename(url)


def open_store(url: str) -> Store:
    """Opens the store of a remote workdir. Raises UserError if its protocol needs a package that is not installed."""
    return Store(url, "--workdir", "gs://bucket/runs/one")


# Reading


def local_copy(path: str | os.PathLike) -> Path:
    """Returns a local path with `~` expanded. For a URL, downloads the run without its checkpoints (see `opened`), or
    the published checkpoint, and returns the path of the copy.

    Raises:
      UserError: the store cannot be reached, or has neither.
    """
    url = remote.as_url(path)
    if not url:
        return Path(as_path(path))
    if hub.is_address(url):
        return remote_cache.local(url, "the directory")
    local = copy_dir(url, "read")
    with remote.user_errors(url), workdir.exclusive(cache_dir(url) / ".read"):
        store = open_store(url)
        names = store.names()
        if CONFIG not in names:
            raise UserError(f"there is no run in {url}: {CONFIG} is missing; give the address of a run or of a "
                            "published checkpoint")
        if is_published(store.read(CONFIG) or b""):
            return remote_cache.local(url, "the directory")
        download_logs(store, names, local)
        return local


def is_published(config: bytes) -> bool:
    """Returns whether a config.json belongs to a published checkpoint."""
    try:
        return "model_type" in loads(config)
    except (InvalidJSON, TypeError):
        return False


@contextlib.contextmanager
def opened(path: str | os.PathLike, best: str = "min") -> Iterator[Checkpoints]:
    """Opens the checkpoints of a run, which may be remote, for reading within the context; `best` is as for
    `Checkpoints`. Raises UserError if there are none."""
    url = remote.as_url(path)
    with contextlib.closing(
            RemoteCheckpoints(copy_dir(url, "read") / CHECKPOINTS, best=best, store=open_store(url)) if url else
            Checkpoints(Path(as_path(path)) / CHECKPOINTS, best=best)) as checkpoints:
        if not checkpoints.steps():
            raise UserError(f"{path} holds no checkpoint yet; train first: lmrep train --workdir={path} ...")
        yield checkpoints


def saved_steps(path: str | os.PathLike) -> list[int]:
    """Returns the steps of the checkpoints of a run, which may be remote. Raises UserError if there are none."""
    with opened(path) as checkpoints:
        return checkpoints.steps()


def download_logs(store: Store, names: Iterable[str], local: Path) -> None:
    """Downloads the store's files `names` to `local`, except checkpoints and NOT_READ, and removes other files there.
    """
    names = {name for name in names if name != LEASE and name.split("/")[0] not in (CHECKPOINTS, *NOT_READ)}
    local.mkdir(parents=True, exist_ok=True)
    for name in _files(local):
        if name not in names and name.split("/")[0] not in NOT_READ:
            (local / name).unlink(missing_ok=True)
    for name in names:
        temporary = local / f".{uuid.uuid4().hex}"
        store.download(name, temporary)
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(local / name)


def merge_lines(url: str, path: Path) -> None:
    """Prepends to a local file the lines that only its copy in the run at `url` has: several machines may append to
    it."""
    with contextlib.suppress(Exception):  # `upload` reports a store that cannot be reached
        remote_lines = (open_store(url).read(path.name) or b"").splitlines(keepends=True)
        local_lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        path.write_bytes(b"".join(dict.fromkeys([*remote_lines, *local_lines])))


def upload(url: str, path: Path) -> None:
    """Uploads one file to the directory of the run at `url`. Logs a warning if that fails."""
    try:
        open_store(url).write(path.name, path.read_bytes())
    except Exception as error:
        log.warning("%s could not be written to %s: %s; it is in %s", path.name, url, remote.describe(error), path)


# Training


class RemoteRun(NamedTuple):
    """A run that trains in a remote store."""

    directory: Path  # the local directory of this process
    checkpoints: Callable[..., RemoteCheckpoints]  # makes the run's `RemoteCheckpoints` from arguments of `Checkpoints`


@contextlib.contextmanager
def training(url: str, every: float = EVERY) -> Iterator[RemoteRun]:
    """Takes the lease of the run at `url` and downloads its files, for training within the context. All processes of
    the run enter it.

    Process 0 uploads the files that have changed in its directory every `every` seconds and at the end, whether the run
    succeeds or fails.

    Raises:
      UserError: the store cannot be reached, or another run holds it.
      RunFault: at the end, if files could not be uploaded; the message lists them and the local directory.
    """
    index, failure, stop = jax.process_index(), None, threading.Event()
    local = copy_dir(url, f"run-{index}" if index else "run")
    with contextlib.ExitStack() as stack:
        store = agreed(lambda: _lock_and_open(url, local, stack))
        lease, identity = Lease(store), None
        if index == 0:
            stack.callback(lease.release)  # also where `take` fails
        while identity is None:
            identity = by_first_process(lambda: _take(lease))
        lease = Lease(store, identity) if index else lease
        agreed(lambda: _download_run(store, local, index))
        logs = Logs(store, local, lease)
        thread = threading.Thread(target=logs.keep_up, args=(stop, every), name="upload", daemon=True)
        if index == 0:
            thread.start()
        try:
            yield RemoteRun(local, partial(RemoteCheckpoints, store=store, lease=lease, upload_logs=logs.push))
        except BaseException as error:
            failure = error
            if isinstance(error, UserError):
                raise UserError(str(error).replace(str(local), url)) from error
            raise
        finally:
            stop.set()
            if index == 0:
                thread.join()
                logs.finish(failure)


def _lock_and_open(url: str, local: Path, stack: contextlib.ExitStack) -> Store:
    """Locks the local directory until `stack` closes, and opens the store at `url`."""
    try:
        stack.enter_context(workdir.lock(local.parent))
    except UserError as error:
        raise UserError(str(error).replace(str(local.parent), url)) from error
    return open_store(url)


def _take(lease: Lease) -> str | None:
    with remote.user_errors(lease.url):
        return lease.take()


def _download_run(store: Store, local: Path, index: int) -> None:
    with remote.user_errors(store.url):
        if index:  # process 0 has written the lease; this process checks that it can write
            probe = f"{CHECKPOINTS}/{UNFINISHED}start/{index}"
            store.write(probe, b"")
            store.remove(probe)
        names = store.names()
        if LEASE not in names:  # some stores omit files that they could not list
            raise OSError("its list of files lacks what was just written")
        download_logs(store, names, local)


class Logs:
    """Uploads the files of a run, except its checkpoints, to its store.

    Args:
      store: the store of the run.
      local: the local directory of the run, whose files equal those in the store.
      lease: the lease of the run.
    """

    def __init__(self, store: Store, local: Path, lease: Lease):
        self._store, self._local, self._lease, self._lock = store, local, lease, threading.Lock()
        self._uploaded = _files(local)

    def keep_up(self, stop: threading.Event, every: float) -> None:
        """Calls `push` every `every` seconds until `stop` is set. Ends the run if another one takes its lease."""
        reported = ""
        while not stop.wait(every):
            try:
                self._lease.check()
                self.push()
                reported = ""
            except LeaseLost:  # a run of one process looks at the lease at every step
                if jax.process_count() > 1:
                    os.kill(os.getpid(), signal.SIGTERM)  # JAX lets all processes stop after the same step
                return
            except Exception as error:
                if (reason := remote.describe(error)) != reported:
                    log.warning("%s could not be brought up to date: %s; trying again every %g s",
                                self._store.url, reason, every)
                reported = reason

    def push(self) -> None:
        """Uploads the files that have changed. Raises the errors of the store, and RunFault if another run has taken
        it."""
        with self._lock:
            for name, stamp in self._changed().items():
                self._lease.check()
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._store.write(name, (self._local / name).read_bytes())
                    self._uploaded[name] = stamp

    def finish(self, failure: BaseException | None) -> None:
        """Uploads the last changes of a run that ended with `failure` (None: success). Raises RunFault if that fails,
        unless `failure` is another exception than RunFault and Stopped; then the error is logged."""
        if isinstance(failure, UserError):
            return  # nothing was written
        try:
            return remote.persistent(self._store.url, self.push, LAST_PATIENCE)
        except Exception as error:
            if isinstance(error, LeaseLost) and str(error) in str(failure):
                return  # reported already
            names = ", ".join([*self._changed()][:8])
            text = (f"{self._store.url} lacks the last changes of {names}: {remote.describe(error)}. They are in "
                    f"{self._local}; the same command continues from the last checkpoint in the store")
        if failure is None or isinstance(failure, RunFault | Stopped):
            raise RunFault(f"{failure}. And {text}" if failure else text) from failure
        log.error("%s", text)

    def _changed(self) -> dict[str, tuple[int, int]]:
        """Returns the files to upload, as `_files` does; none before config.json exists."""
        files = _files(self._local)
        return {name: stamp for name, stamp in files.items() if CONFIG in files and self._uploaded.get(name) != stamp
                and name not in PUT and not posixpath.basename(name).startswith(".")}


def _files(local: Path) -> dict[str, tuple[int, int]]:
    """Returns {name: (size, time)} of all files in a local directory, except checkpoints. They change with the content.
    """
    files = {}
    for path in sorted(local.rglob("*")):
        name = path.relative_to(local).as_posix()
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if path.is_file() and not name.startswith(f"{CHECKPOINTS}/"):
                files[name] = path.stat().st_size, path.stat().st_mtime_ns
    return files
