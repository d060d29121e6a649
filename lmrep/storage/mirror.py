"""A run in a remote store (`gs://bucket/runs/x`): it lives in a directory of this machine, and is mirrored.

    URL/config.json, metrics.jsonl, ...     whole each time they have changed
    URL/checkpoints/STEP/                   its files first and its manifest.json last: without that it is none
    URL/mirror.json                         who trains here, when it was last heard of, and whose copy the run's is

    ~/.cache/lmrep/workdirs/HASH/run/x      where this machine trains it (under $LMREP_DATA_DIR where that is set)
    ~/.cache/lmrep/workdirs/HASH/read/x     its copy of a run that is trained elsewhere

A store that is cut off in the middle of anything holds a run that can go on: the lines up to a checkpoint are there
before it is complete, and a former one goes after. Where the last to upload was this machine, its own copy counts,
which may be ahead; otherwise the store's.
"""

import contextlib
import fcntl
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
ORIGIN = ".mirror"  # in a copy: which upload of the store's it is the origin of
NOT_READ = ("tensorboard", "profile", "wandb")  # large, and no run needs its former ones
PUT = ("eval.json", "eval.jsonl")  # written by `put` alone, by any machine that evaluates
REMAINS, BEGUN = b"remains", b"begun"  # checkpoints that are not complete: others' or being removed, and ours
EVERY = 30.0  # seconds between uploads
PAUSES = (0, 5, 20)  # seconds before each try of the last upload

log = logging.getLogger(__name__)


def cache_dir(url: str) -> Path:
    """Where this machine keeps its copies of the run at `url`."""
    return default_data_dir() / "workdirs" / hashlib.sha256(url.encode()).hexdigest()[:16]


def training_dir(url: str) -> Path:
    """Where this machine trains the run at `url`."""
    return cache_dir(url) / "run" / posixpath.basename(url)


def open_store(url: str) -> Store:
    """The store of a remote workdir. Raises UserError where its protocol lacks a package."""
    return Store(url, "--workdir", "gs://bucket/runs/one")


def check_single_process(url: str, processes: int) -> None:
    """Raises UserError where several processes would train there: each would have a part of every checkpoint."""
    if processes > 1:
        raise UserError(f"the workdir {url} is in a remote store, and the {processes} processes of this run write "
                        "checkpoints together; mount it on every host (gcsfuse, say), and give that path")


def complete_steps(names: Iterable[str]) -> list[int]:
    """The steps whose checkpoint is complete, of the files of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(p[1]) for p in parts if len(p) == 3 and p[0] == CHECKPOINTS and p[1].isdecimal()
                  and p[2] == workdir.MANIFEST)


# Reading


def local_copy(place: str | os.PathLike, step: int | None = None, checkpoints: bool = True) -> Path:
    """A directory, or a copy of a remote one to be read: as `read`."""
    url = remote.as_url(place)
    return download(url, step, checkpoints) if url else Path(place)


def download(url: str, step: int | None = None, checkpoints: bool = True) -> Path:
    """A directory of this machine with the run at `url`, to be read.

    Args:
      step: of the checkpoint that is wanted; None: the newest that verifies.
      checkpoints: False leaves them out.

    Raises:
      UserError: the store cannot be reached, or has no such run or checkpoint.
    """
    place = cache_dir(url) / "read" / posixpath.basename(url)
    with remote.user_errors(url), _alone(cache_dir(url) / ".read"):
        store = open_store(url)
        if mark(store).get("copy", "") == _origin(training_dir(url)):
            return training_dir(url)  # which may be ahead of the store
        names = store.names()
        if CONFIG not in names:
            raise UserError(f"there is no run in {url}: {CONFIG} is missing; give the --workdir of a run")
        there = complete_steps(names)
        if checkpoints and not there:
            raise UserError(f"{url} holds no checkpoint yet; train first: lmrep train --workdir={url} ...")
        if step is not None and step not in there:
            raise UserError(f"{url} holds no checkpoint {step}; it holds {', '.join(map(str, there))}")
        fetch(store, names, place, [])
        for wanted in [step] if step is not None else there[::-1] if checkpoints else []:
            try:
                fetch(store, names, place, [wanted])
                workdir.verified(place / CHECKPOINTS / str(wanted))
                break
            except (workdir.Damaged, FileNotFoundError) as damage:  # retention may have removed it since
                log.warning("checkpoint %d in %s is damaged: %s", wanted, url, damage)
        return place


def fetch(store: Store, names: Iterable[str], local: Path, steps: Iterable[int]) -> None:
    """Makes `local` what the store holds (`names`): the checkpoints of `steps`, and all other files but NOT_READ. Other
    checkpoints that are there stay where they are the store's."""
    names = [name for name in names if name != MARK]
    small = {name for name in names if name.split("/")[0] not in (CHECKPOINTS, *NOT_READ)}
    local.mkdir(parents=True, exist_ok=True)
    for path in [p for p in local.rglob("*") if p.is_file()]:
        name = path.relative_to(local).as_posix()
        if not name.startswith(f"{CHECKPOINTS}/") and name not in small:
            path.unlink(missing_ok=True)
    for name in small:
        draft = local / f".{uuid.uuid4().hex}"
        store.download(name, draft)
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        draft.replace(local / name)
    there, held = complete_steps(names), _held(local)
    manifests = {step: store.read(_file(step)) for step in {*steps, *held} & {*there}}
    same = {str(step) for step in held if held[step] == manifests.get(step)}
    for path in local.glob(f"{CHECKPOINTS}/[0-9]*"):
        if path.name not in same:
            shutil.rmtree(path)
    for step in steps:
        if str(step) in same or manifests.get(step) is None:  # it may have been removed since
            continue
        log.info("fetching checkpoint %s from %s", f"{step:,}", store.url)
        draft, prefix = local / CHECKPOINTS / f"{UNFINISHED}{step}", f"{CHECKPOINTS}/{step}/"
        shutil.rmtree(draft, ignore_errors=True)
        # The manifest is what was read before: if another run has replaced the rest since, it does not verify.
        _each(lambda name, draft=draft, prefix=prefix: store.download(name, draft / name.removeprefix(prefix)),
              [name for name in names if name.startswith(prefix) and name != _file(step)])
        (draft / workdir.MANIFEST).write_bytes(manifests[step])
        draft.rename(local / CHECKPOINTS / str(step))


def merge_lines(url: str, path: Path) -> None:
    """Puts before the lines of a file those that it has in the run at `url` and lacks here: machines take turns."""
    with contextlib.suppress(Exception):  # a store that cannot be reached is told of by `put`
        theirs = (open_store(url).read(path.name) or b"").splitlines(keepends=True)
        ours = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        path.write_bytes(b"".join(dict.fromkeys([*theirs, *ours])))


def upload(url: str, path: Path) -> None:
    """Writes one file into the run at `url`, at its top. Where that fails a warning says so."""
    try:
        open_store(url).write(path.name, path.read_bytes())
    except Exception as error:
        log.warning("%s could not be written to %s: %s; it is in %s", path.name, url, remote.describe(error), path)


# Training


@contextlib.contextmanager
def mirrored(url: str, every: float = EVERY) -> Iterator[Path]:
    """The directory in which this machine, and no other meanwhile, trains the run at `url`. What changes there is
    uploaded every so many seconds, and at the end, however that comes.

    Raises:
      UserError: the store cannot be reached, or another run holds it.
      RunFault: at the end, where something could not be uploaded; it says what, and where it lies.
    """
    stop, failure = threading.Event(), None
    with workdir.lock(cache_dir(url)), contextlib.ExitStack() as stack:
        with remote.user_errors(url):
            mirror = Mirror(open_store(url))
            mirror.claim.take(_origin(mirror.local))
        stack.callback(lambda: mirror.claim.release(mirror.pushed))
        thread = threading.Thread(target=mirror.keep_up, args=(stop, every), name="mirror", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        with remote.user_errors(url):
            mirror.settle()
        try:
            yield mirror.local
        except UserError as error:
            failure = error
            raise UserError(str(error).replace(str(mirror.local), url)) from error
        except BaseException as error:
            failure = error
            raise
        finally:
            stop.set()
            thread.join()
            mirror.finish(failure)


class Mirror:
    """Uploads this machine's copy of a run to its store, while its `claim` holds.

    Attributes:
      local: the copy.
      claim: this process's hold of the store.
      pushed: whether anything was uploaded.
    """

    def __init__(self, store: Store):
        self.local, self._store = training_dir(store.url), store
        self.claim, self.pushed = Claim(store, self.local), False
        self._there: dict[int, bytes] = {}  # manifests of the store's checkpoints, or one of the next two
        self._seen: dict[str, tuple[int, int]] = {}  # size and time of the files that this process has uploaded
        self._settled = False

    def settle(self) -> None:
        """Brings the local copy to where the store's is, if it is not ahead of it already."""
        names = self._store.names()
        if MARK not in names:  # some stores leave out what they could not list
            raise OSError("its list of files lacks what was just written")
        if _origin(self.local) != self.claim.copy:  # else the local one is the store's, or ahead of it
            with contextlib.suppress(FileNotFoundError):
                (self.local / ORIGIN).unlink()
            fetch(self._store, names, self.local, complete_steps(names))
            workdir.write_text(self.local / ORIGIN, self.claim.copy)  # it counts once it is complete
        steps = {int(name.split("/")[1]) for name in names
                 if name.startswith(f"{CHECKPOINTS}/") and name.split("/")[1].isdecimal()}
        self._there = {step: self._store.read(_file(step)) or REMAINS for step in steps}
        self._settled = True

    def keep_up(self, stop: threading.Event, every: float) -> None:
        """Pushes until `stop` is set."""
        told = ""
        while not stop.wait(every):
            try:
                self.push()
                told = ""
            except Exception as error:
                if (why := remote.describe(error)) != told:
                    log.warning("%s could not be brought up to date: %s; trying again every %g s",
                                self._store.url, why, every)
                told = why

    def push(self) -> None:
        """Brings the store to where the local copy is. Raises what the store does, and RunFault where another run has
        taken it."""
        self.claim.refresh(0)
        if not self._settled or not (self.local / CONFIG).is_file():
            return  # nothing is begun yet
        self.pushed = True
        held = _held(self.local)  # before the lines of metrics.jsonl, which must be there up to the newest of these
        for step in sorted(self._there):  # those that the run has gone back before, or that others left
            if step > max(held, default=-1) or self._there[step] not in (BEGUN, held.get(step, self._there[step])):
                self._drop(step)
        for name, path, stamp in self._changed():
            self.claim.refresh()
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                self._store.write(name, path.read_bytes())
                self._seen[name] = stamp
        for step in sorted(held):
            if self._there.get(step) != held[step]:
                with contextlib.suppress(FileNotFoundError):
                    self._upload(step, held[step])
        for step in sorted(self._there.keys() - held.keys()):
            self._drop(step)

    def finish(self, failure: BaseException | None) -> None:
        """The last push of a run, which ended with `failure`."""
        if isinstance(failure, UserError):
            return  # nothing was written
        for pause in PAUSES:
            time.sleep(pause)
            try:
                return self.push()
            except RunFault as error:
                text = f"{error}; what this run has made since is in {self.local}"
                break
            except Exception as error:
                why = remote.describe(error)
                log.warning("%s could not be brought up to date: %s", self._store.url, why)
        else:
            text = (f"{self._store.url} lacks {self._lacking()}, which could not be uploaded ({why}). All of it is in "
                    f"{self.local}; the same command on this machine uploads it and goes on")
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
        self._there[step] = BEGUN

        def one(path: Path) -> None:
            name, stamp = path.relative_to(self.local).as_posix(), _stamp(path)
            if self._seen.get(name) != stamp:
                self.claim.refresh()
                self._store.upload(path, name)
                self._seen[name] = stamp

        _each(one, [p for p in directory.rglob("*") if p.is_file() and p != directory / workdir.MANIFEST])
        if (directory / workdir.MANIFEST).read_bytes() == manifest:  # else it was replaced meanwhile
            self._store.write(_file(step), manifest)
            self._there[step] = manifest

    def _drop(self, step: int) -> None:
        self._there[step], prefix = REMAINS, f"{CHECKPOINTS}/{step}/"
        self._seen = {name: stamp for name, stamp in self._seen.items() if not name.startswith(prefix)}
        self._store.remove(_file(step))
        self._store.remove(prefix.rstrip("/"))
        del self._there[step]

    def _lacking(self) -> str:
        held = _held(self.local)
        return ", ".join([*(f"checkpoint {step}" for step in sorted(held) if self._there.get(step) != held[step]),
                          *(name for name, _, _ in self._changed())][:8]) or "its last word"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process of this machine is in a block of that `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _each(action: Callable, items: Iterable) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(action, items):
            pass


def _file(step: int) -> str:
    return f"{CHECKPOINTS}/{step}/{workdir.MANIFEST}"


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _held(local: Path) -> dict[int, bytes]:
    """The manifests of the checkpoints in a directory that are complete."""
    found = {}
    for path in local.glob(f"{CHECKPOINTS}/*/{workdir.MANIFEST}"):
        with contextlib.suppress(FileNotFoundError):
            if path.parent.name.isdecimal():
                found[int(path.parent.name)] = path.read_bytes()
    return found


def _origin(local: Path) -> str | None:
    try:
        return (local / ORIGIN).read_text()
    except FileNotFoundError:
        return None
