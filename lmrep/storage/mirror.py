"""Runs in a remote store (`gs://bucket/runs/x`): trained in a local directory and mirrored to the store.

    URL/config.json, metrics.jsonl, ...     uploaded completely whenever they have changed
    URL/checkpoints/STEP/                   manifest.json is uploaded last: without it the checkpoint does not count
    URL/mirror.json                         see `claims`

    ~/.cache/lmrep/workdirs/HASH/run/x      the local directory for training (or under $LMREP_DATA_DIR, if set)
    ~/.cache/lmrep/workdirs/HASH/read/x     the local copy of a run that another machine trains

If uploading is interrupted at any point, the run in the store can still continue: the metrics up to a checkpoint are
uploaded before it, and previous checkpoints are removed after it. If this machine was the last to upload, its local
copy counts, which may be ahead of the store; otherwise the store counts.
"""

import contextlib
import hashlib
import logging
import os
import posixpath
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmrep.core import remote
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.host import default_data_dir
from lmrep.core.remote import Store
from lmrep.storage import workdir
from lmrep.storage.checkpoints import UNFINISHED
from lmrep.storage.claims import MARK, Claim, mark

CONFIG, CHECKPOINTS = "config.json", "checkpoints"
COPY_ID = ".mirror"  # in a local copy: its id, see `Claim.copy`
NOT_READ = ("tensorboard", "profile", "wandb")  # large, and not needed to continue a run
PUT = ("eval.json", "eval.jsonl")  # written only by `upload`, from any machine that evaluates
INCOMPLETE, UPLOADING = b"incomplete", b"uploading"  # checkpoints in the store that lack files: to be removed; begun
EVERY = 30.0  # seconds between uploads
PAUSES = (0, 5, 20)  # seconds before each attempt of the last upload

log = logging.getLogger(__name__)


def cache_dir(url: str) -> Path:
    """The directory for local copies of the run at `url`."""
    return default_data_dir() / "workdirs" / hashlib.sha256(url.encode()).hexdigest()[:16]


def training_dir(url: str) -> Path:
    """The local directory in which the run at `url` is trained."""
    return cache_dir(url) / "run" / posixpath.basename(url)


def open_store(url: str) -> Store:
    """The store of a remote workdir. Raises UserError if its protocol needs a package that is not installed."""
    return Store(url, "--workdir", "gs://bucket/runs/one")


def check_single_process(url: str, processes: int) -> None:
    """Raises UserError if several processes would train in a remote store, where each would have only a shard of a
    checkpoint."""
    if processes > 1:
        raise UserError(f"the workdir {url} is in a remote store, and the {processes} processes of this run write "
                        "checkpoints together; mount it on every host, for example with gcsfuse, and give that path")


def complete_steps(names: Iterable[str]) -> list[int]:
    """The steps of complete checkpoints, given the names of all files of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(p[1]) for p in parts if len(p) == 3 and p[0] == CHECKPOINTS and p[1].isdecimal()
                  and p[2] == workdir.MANIFEST)


# Reading


def local_copy(path: str | os.PathLike, step: int | None = None, checkpoints: bool = True) -> Path:
    """`path` itself, or for a remote workdir a local copy, as `download` makes it."""
    url = remote.as_url(path)
    return download(url, step, checkpoints) if url else Path(path)


def download(url: str, step: int | None = None, checkpoints: bool = True) -> Path:
    """A local directory with the run at `url`, for reading.

    Args:
      url: of the remote workdir.
      step: of the checkpoint to download; by default the newest intact one.
      checkpoints: whether to download a checkpoint.

    Raises:
      UserError: the store cannot be reached, or has no such run or checkpoint.
    """
    local = cache_dir(url) / "read" / posixpath.basename(url)
    with remote.user_errors(url), workdir.exclusive(cache_dir(url) / ".read"):
        store = open_store(url)
        if mark(store).get("copy", "") == _copy_id(training_dir(url)):
            return training_dir(url)  # it may be ahead of the store
        names = store.names()
        if CONFIG not in names:
            raise UserError(f"there is no run in {url}: {CONFIG} is missing; give the --workdir of a run")
        available = complete_steps(names)
        if checkpoints and not available:
            raise UserError(f"{url} holds no checkpoint yet; train first: lmrep train --workdir={url} ...")
        if step is not None and step not in available:
            raise UserError(f"{url} holds no checkpoint {step}; it holds {', '.join(map(str, available))}")
        fetch(store, names, local, [])
        for candidate in [step] if step is not None else available[::-1] if checkpoints else []:
            try:
                fetch(store, names, local, [candidate])
                workdir.verified(local / CHECKPOINTS / str(candidate))
                break
            except (workdir.Damaged, FileNotFoundError) as damage:  # it may have been deleted since
                log.warning("checkpoint %d in %s is damaged: %s", candidate, url, damage)
        return local


def fetch(store: Store, names: Iterable[str], local: Path, steps: Iterable[int]) -> None:
    """Makes `local` a copy of the store's files `names`: the checkpoints of `steps`, and all other files except
    NOT_READ. Other local checkpoints stay if the store has the same ones."""
    names = [name for name in names if name != MARK]
    small = {name for name in names if name.split("/")[0] not in (CHECKPOINTS, *NOT_READ)}
    local.mkdir(parents=True, exist_ok=True)
    for path in [p for p in local.rglob("*") if p.is_file()]:
        name = path.relative_to(local).as_posix()
        if not name.startswith(f"{CHECKPOINTS}/") and name not in small:
            path.unlink(missing_ok=True)
    for name in small:
        temporary = local / f".{uuid.uuid4().hex}"
        store.download(name, temporary)
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(local / name)
    available, saved = complete_steps(names), _local_manifests(local)
    manifests = {step: store.read(_file(step)) for step in {*steps, *saved} & {*available}}
    same = {str(step) for step in saved if saved[step] == manifests.get(step)}
    for path in local.glob(f"{CHECKPOINTS}/[0-9]*"):
        if path.name not in same:
            shutil.rmtree(path)
    for step in steps:
        if str(step) in same or manifests.get(step) is None:  # it may have been deleted since
            continue
        log.info("fetching checkpoint %s from %s", f"{step:,}", store.url)
        temporary, prefix = local / CHECKPOINTS / f"{UNFINISHED}{step}", f"{CHECKPOINTS}/{step}/"
        shutil.rmtree(temporary, ignore_errors=True)
        # The manifest was read before: if another run has replaced the other files since, verification fails.
        _each(lambda name, target=temporary, prefix=prefix: store.download(name, target / name.removeprefix(prefix)),
              [name for name in names if name.startswith(prefix) and name != _file(step)])
        (temporary / workdir.MANIFEST).write_bytes(manifests[step])
        temporary.rename(local / CHECKPOINTS / str(step))


def merge_lines(url: str, path: Path) -> None:
    """Prepends to a local file the lines that only its copy in the run at `url` has, as several machines may append to
    it."""
    with contextlib.suppress(Exception):  # `upload` reports a store that cannot be reached
        theirs = (open_store(url).read(path.name) or b"").splitlines(keepends=True)
        ours = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        path.write_bytes(b"".join(dict.fromkeys([*theirs, *ours])))


def upload(url: str, path: Path) -> None:
    """Uploads one file to the top directory of the run at `url`. Logs a warning if that fails."""
    try:
        open_store(url).write(path.name, path.read_bytes())
    except Exception as error:
        log.warning("%s could not be written to %s: %s; it is in %s", path.name, url, remote.describe(error), path)


# Training


@contextlib.contextmanager
def mirrored(url: str, every: float = EVERY) -> Iterator[Path]:
    """A context with the local directory in which this machine trains the run at `url`, exclusively. Changes are
    uploaded every `every` seconds and at the end, whether the run succeeds or fails.

    Raises:
      UserError: the store cannot be reached, or another run holds it.
      RunFault: at the end, if files could not be uploaded; the message lists them and the local directory.
    """
    stop, failure = threading.Event(), None
    with workdir.lock(cache_dir(url)), contextlib.ExitStack() as stack:
        with remote.user_errors(url):
            mirror = Mirror(open_store(url))
            mirror.claim.take(_copy_id(mirror.local))
        stack.callback(lambda: mirror.claim.release(mirror.pushed))
        thread = threading.Thread(target=mirror.keep_up, args=(stop, every), name="mirror", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        with remote.user_errors(url):
            mirror.settle()
        try:
            yield mirror.local
        except BaseException as error:
            failure = error
            if isinstance(error, UserError):
                raise UserError(str(error).replace(str(mirror.local), url)) from error
            raise
        finally:
            stop.set()
            thread.join()
            mirror.finish(failure)


class Mirror:
    """Uploads the local copy of a run to its store.

    Attributes:
      local: the directory of the local copy.
      claim: this process's lock on the store.
      pushed: whether anything was uploaded.
    """

    def __init__(self, store: Store):
        self.local, self._store = training_dir(store.url), store
        self.claim, self.pushed = Claim(store, self.local), False
        self._stored: dict[int, bytes] = {}  # manifest of each checkpoint in the store, or INCOMPLETE or UPLOADING
        self._seen: dict[str, tuple[int, int]] = {}  # size and modification time of each uploaded file
        self._settled = False

    def settle(self) -> None:
        """Downloads the run, unless the local copy is the one that the store was uploaded from."""
        names = self._store.names()
        if MARK not in names:  # some stores omit files that they could not list
            raise OSError("its list of files lacks what was just written")
        if _copy_id(self.local) != self.claim.copy:  # otherwise the local copy equals the store or is ahead of it
            with contextlib.suppress(FileNotFoundError):
                (self.local / COPY_ID).unlink()
            fetch(self._store, names, self.local, complete_steps(names))
            workdir.write_text(self.local / COPY_ID, self.claim.copy)  # only after everything is downloaded
        steps = {int(name.split("/")[1]) for name in names
                 if name.startswith(f"{CHECKPOINTS}/") and name.split("/")[1].isdecimal()}
        self._stored = {step: self._store.read(_file(step)) or INCOMPLETE for step in steps}
        self._settled = True

    def keep_up(self, stop: threading.Event, every: float) -> None:
        """Calls `push` every `every` seconds until `stop` is set."""
        reported = ""
        while not stop.wait(every):
            try:
                self.push()
                reported = ""
            except Exception as error:
                if (why := remote.describe(error)) != reported:
                    log.warning("%s could not be brought up to date: %s; trying again every %g s",
                                self._store.url, why, every)
                reported = why

    def push(self) -> None:
        """Uploads all changes of the local copy. Raises the errors of the store, and RunFault if another run has taken
        it."""
        self.claim.refresh(0)
        if not self._settled or not (self.local / CONFIG).is_file():
            return  # there is no run yet
        self.pushed = True
        saved = _local_manifests(self.local)  # read first: metrics.jsonl must include the steps up to the newest
        for step, manifest in sorted(self._stored.items()):  # the run has gone back before these, or others left them
            if step > max(saved, default=-1) or manifest not in (UPLOADING, saved.get(step, manifest)):
                self._drop(step)
        for name, path, stamp in self._changed():
            self.claim.refresh()
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                self._store.write(name, path.read_bytes())
                self._seen[name] = stamp
        for step in sorted(saved):
            if self._stored.get(step) != saved[step]:
                with contextlib.suppress(FileNotFoundError):
                    self._upload(step, saved[step])
        for step in sorted(self._stored.keys() - saved.keys()):
            self._drop(step)

    def finish(self, failure: BaseException | None) -> None:
        """The last `push` of a run, which ended with `failure` (None: with success)."""
        if isinstance(failure, UserError):
            return  # nothing was written
        for pause in PAUSES:
            time.sleep(pause)
            try:
                return self.push()
            except RunFault as error:
                text = f"{error}; the later results of this run are in {self.local}"
                break
            except Exception as error:
                why = remote.describe(error)
                log.warning("%s could not be brought up to date: %s", self._store.url, why)
        else:
            text = (f"{self._store.url} lacks {self._lacking()}, which could not be uploaded ({why}). All of it is in "
                    f"{self.local}; the same command on this machine uploads it and continues")
        if failure is None or isinstance(failure, RunFault | Stopped):
            raise RunFault(f"{failure}. And {text}" if failure else text) from failure
        log.error("%s", text)

    def _changed(self) -> list[tuple[str, Path, tuple[int, int]]]:
        found = []
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local).as_posix()
            if name.startswith(f"{CHECKPOINTS}/") or path.name.startswith(".") or name in PUT:
                continue
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and self._seen.get(name) != (stamp := _stamp(path)):
                    found.append((name, path, stamp))
        return found

    def _upload(self, step: int, manifest: bytes) -> None:
        directory = self.local / CHECKPOINTS / str(step)
        self._stored[step] = UPLOADING

        def one(path: Path) -> None:
            name, stamp = path.relative_to(self.local).as_posix(), _stamp(path)
            if self._seen.get(name) != stamp:
                self.claim.refresh()
                self._store.upload(path, name)
                self._seen[name] = stamp

        _each(one, [p for p in directory.rglob("*") if p.is_file() and p != directory / workdir.MANIFEST])
        if (directory / workdir.MANIFEST).read_bytes() == manifest:  # else it was replaced meanwhile
            self._store.write(_file(step), manifest)
            self._stored[step] = manifest

    def _drop(self, step: int) -> None:
        self._stored[step], prefix = INCOMPLETE, f"{CHECKPOINTS}/{step}/"
        self._seen = {name: stamp for name, stamp in self._seen.items() if not name.startswith(prefix)}
        self._store.remove(_file(step))
        self._store.remove(prefix.rstrip("/"))
        del self._stored[step]

    def _lacking(self) -> str:
        saved = _local_manifests(self.local)
        return ", ".join([*(f"checkpoint {step}" for step in sorted(saved) if self._stored.get(step) != saved[step]),
                          *(name for name, _, _ in self._changed())][:8]) or "the last changes"


def _each(action: Callable, items: Iterable) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(action, items):
            pass


def _file(step: int) -> str:
    return f"{CHECKPOINTS}/{step}/{workdir.MANIFEST}"


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _local_manifests(local: Path) -> dict[int, bytes]:
    """The manifests of the complete checkpoints in a local directory."""
    found = {}
    for path in local.glob(f"{CHECKPOINTS}/*/{workdir.MANIFEST}"):
        with contextlib.suppress(FileNotFoundError):
            if path.parent.name.isdecimal():
                found[int(path.parent.name)] = path.read_bytes()
    return found


def _copy_id(local: Path) -> str | None:
    try:
        return (local / COPY_ID).read_text()
    except FileNotFoundError:
        return None
