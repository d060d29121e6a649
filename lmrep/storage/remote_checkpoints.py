"""Checkpoints in a remote store, written by one process or by several that share no file system.

    URL/checkpoints/1000/                 as in a local workdir; manifest.json is written last
    URL/checkpoints/.unfinished-2000/3.json    what process 3 has written of a checkpoint that is being saved

Each process lets Orbax write its own shards to a local directory, uploads these files, and then their names, sizes and
SHA-256s. Once all have done so, process 0 writes the manifest with the files of all processes. So a checkpoint in the
store is complete if it has a manifest, no process reads back what another has written, and training does not wait for
the store before the next checkpoint is due.

(Orbax 0.12 writes to `gs://` itself, but not to `s3://`, and what it writes could only be verified by reading it back.)

To restore one, each process downloads all of its files. The databases of the processes (OCDBT) are merged then: during
a save, no process has all of them.
"""

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

import jax

from lmrep.config import json_files
from lmrep.core import files, remote
from lmrep.core.errors import RunFault
from lmrep.core.remote import Store, transfer
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed
from lmrep.storage import orbax
from lmrep.storage.checkpoints import REMOVED, UNFINISHED, Checkpoints
from lmrep.storage.lease import Lease, LeaseLost
from lmrep.storage.manifests import checked

CHECKPOINTS = "checkpoints"
OTHERS_SECONDS = 3600.0  # for the other processes to upload their files, after process 0 has
POLL_SECONDS = 0.5
# Seconds between two checks of the lease while files are uploaded. An upload that began before another run took the
# lease goes on. Should it replace a file of that run, the manifest does not fit, and the checkpoint counts as damaged.
LEASE_SECONDS = 5.0

log = logging.getLogger(__name__)


def complete_steps(names: Iterable[str]) -> list[int]:
    """The steps of complete checkpoints, given the names of the files of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(p[1]) for p in parts if len(p) == 3 and p[0] == CHECKPOINTS and p[1].isdecimal()
                  and p[2] == files.MANIFEST)


class FileList(TypedDict):
    """What a process says of the files that it has uploaded."""

    lease: Any
    files: dict[str, list[Any]]


class RemoteCheckpoints(Checkpoints):
    """The checkpoints of a run in a remote store.

    Args:
      directory: of this process, for files on their way; a single process also keeps local copies there.
      keep, keep_best, best: as for `Checkpoints`.
      store: of the run.
      lease: of the run, to write; None to read only.
      upload_logs: called by process 0 before a checkpoint becomes complete, to upload the logs up to it.
      reuse: a directory that may have local copies of the same checkpoints.
    """

    _shared = False

    def __init__(
        self, directory: str | os.PathLike, keep: int = 3, keep_best: int = 1, best: str = "min", *, store: Store,
        lease: Lease | None = None, upload_logs: Callable[[], None] = lambda: None, reuse: Path | None = None,
    ):
        super().__init__(directory, keep, keep_best, best)
        self._best, self._store, self._lease, self._upload_logs = best, store, lease, upload_logs
        self._name, self._reuse = f"{store.url}/{CHECKPOINTS}", reuse

    # Writing

    def save(self, step: int, state: Any, meta: dict, score: float | None = None) -> None:
        self.wait()
        # Another checkpoint of this step may be damaged. It must not seem complete while it is replaced.
        by_first_process(lambda: self._remove_step(step) if self._manifest_in_store(step) else None)
        super().save(step, state, meta, score)

    def check(self) -> None:
        # Several processes agree on a step to stop after: see `remote_workdir`.
        if jax.process_count() == 1 and self._lease and self._lease.lost:
            raise LeaseLost(f"{self._lease.lost}; this run stops, since only one may write there")

    def clean(self) -> None:
        agreed(self._clean)

    def _clean(self) -> None:
        for pattern in (f"{UNFINISHED}*", f"{REMOVED}*"):
            for leftover in self.directory.glob(pattern):
                shutil.rmtree(leftover)
        names = self._store_does(lambda: self._store.names(CHECKPOINTS))
        complete = {str(step) for step in complete_steps(names)}
        for path in self.directory.glob("[0-9]*"):
            if path.name not in complete or not self._is_copy(path, self._content(int(path.name))):
                shutil.rmtree(path)
        if jax.process_index() == 0:
            for folder in sorted({name.split("/")[1] for name in names} - complete):
                self._store_does(lambda folder=folder: self._store.remove(f"{CHECKPOINTS}/{folder}"))
                log.info("removed %s/%s/%s, left by a save that was killed", self._store.url, CHECKPOINTS, folder)

    def _publish(self, step: int, manifest: dict) -> None:
        index, local = jax.process_index(), self._unfinished(step)
        written = files.file_hashes(local)
        if index:  # the files at the top belong to process 0
            written = {name: entry for name, entry in written.items() if "/" in name}
        self._store_does(lambda: self._lease.check(0))
        self._upload(local, step, written)
        if index:
            content = json.dumps({"lease": self._lease.identity, "files": written}).encode()
            self._store_does(lambda: self._store.write(_list(step, index), content))
            return shutil.rmtree(local)
        for other in range(1, jax.process_count()):
            written |= self._files_of(other, step)
        files.write_json(local / files.MANIFEST, files.signed({**manifest, "best": self._best, "files": written}))
        content = (local / files.MANIFEST).read_bytes()
        self._store_does(self._upload_logs)
        self._store_does(lambda: self._lease.check(0))
        self._store_does(lambda: self._store.write(_manifest(step), content))
        if jax.process_count() == 1:
            self._rename_to_final(step)
        else:
            shutil.rmtree(local)
            self._store_does(lambda: self._store.remove(_list(step)))
        return self._delete_old(step)

    def _upload(self, local: Path, step: int, names: Iterable[str]) -> None:
        missing = set(names)

        def one(name: str) -> None:
            self._lease.check(LEASE_SECONDS)
            self._store.upload(local / name, f"{CHECKPOINTS}/{step}/{name}")
            missing.discard(name)

        self._store_does(lambda: transfer(one, sorted(missing)))

    def _files_of(self, process: int, step: int) -> dict[str, list]:
        """{name: [size, SHA-256]} of what another process has uploaded, once it has."""
        deadline = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < deadline:
            content = self._store_does(lambda: self._store.read(_list(step, process)))
            if content and (found := json_files.parse(FileList, content))["lease"] == self._lease.identity:
                return found["files"]
            time.sleep(POLL_SECONDS)
            self._store_does(self._lease.check)
        raise RunFault(f"process {process} has not uploaded its files within {OTHERS_SECONDS:.0f} s")

    def _remove_step(self, step: int) -> None:
        def remove() -> None:
            if self._lease:
                self._lease.check(0)
            self._store.remove(_manifest(step))  # first, so that no reader finds it half deleted
            self._store.remove(f"{CHECKPOINTS}/{step}")

        self._store_does(remove)
        shutil.rmtree(self.directory / str(step), ignore_errors=True)

    def _failure(self, step: int, needed: int, error: Exception) -> RunFault:
        if not isinstance(error, RunFault):  # not of the store or the lease
            return super()._failure(step, needed, error)
        return RunFault(f"checkpoint {step} could not be saved in {self._name}: {error}. Earlier checkpoints are "
                        "untouched; fix the cause and give the same command again.")

    # Reading

    def download(self, step: int | None = None) -> int | None:
        """Downloads checkpoint `step`, or the newest undamaged one, and returns its step; None if there is none. Only
        this process calls it. Raises RunFault if all are damaged."""
        return self._first_verified(self.steps()[::-1] if step is None else [step])

    def download_best(self) -> int | None:
        """As `download`, of the undamaged checkpoint with the best score."""
        steps = self.steps()
        if steps:
            with contextlib.suppress(files.Damaged):
                self._sign = -1 if self._checked(steps[-1], files.manifest).get("best") == "max" else 1
        return self._first_verified(self._by_score(steps))

    def _directories(self) -> tuple[list[int], list[int]]:
        return complete_steps(self._store_does(lambda: self._store.names(CHECKPOINTS))), []

    def _checked(self, step: int, check: Callable[[Path], dict]) -> dict:
        content, local = self._content(step), self.directory / str(step)
        if check is files.manifest:
            return checked(files.parse_manifest(content), step)
        for has_copy in (lambda: self._is_copy(local, content), lambda: self._link(step, content)):
            with contextlib.suppress(files.Damaged):
                if has_copy():
                    return super()._checked(step, check)
        self._download(step, content)
        return super()._checked(step, check)

    def _download(self, step: int, content: bytes) -> None:
        """Makes the local copy of the checkpoint whose manifest is `content`."""
        log.info("downloading checkpoint %s from %s", f"{step:,}", self._store.url)
        names = files.parse_manifest(content)["files"]
        if outside := [name for name in names if {"..", "/"} & set(PurePosixPath(name).parts)]:
            raise files.Damaged(f"it has a file outside of its directory, {outside[0]}")
        temporary = self._unfinished(step)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            self._store_does(lambda: transfer(
                lambda name: self._store.download(f"{CHECKPOINTS}/{step}/{name}", temporary / name), names))
        except FileNotFoundError as error:
            raise files.Damaged(f"a file is missing ({remote.describe(error)})") from error
        (temporary / files.MANIFEST).write_bytes(content)
        self._replace(step)

    def _link(self, step: int, content: bytes) -> bool:
        """Makes the local copy of hard links to another one. Whether there was one: it may be deleted at any time."""
        if not (self._reuse and self._is_copy(self._reuse / str(step), content)):
            return False
        shutil.rmtree(self._unfinished(step), ignore_errors=True)
        try:
            shutil.copytree(self._reuse / str(step), self._unfinished(step), copy_function=os.link)
        except (OSError, shutil.Error):
            return False
        self._replace(step)
        return True

    def _replace(self, step: int) -> None:
        shutil.rmtree(self.directory / str(step), ignore_errors=True)
        self._unfinished(step).rename(self.directory / str(step))

    def _load(self, step: int, *arguments: Any) -> dict[str, Any]:
        agreed(lambda: self._own_copy(step))
        values = super()._load(step, *arguments)
        if jax.process_count() > 1:
            shutil.rmtree(self.directory / str(step))
        return values

    def _own_copy(self, step: int) -> None:
        """Downloads a checkpoint that process 0 has downloaded and verified."""
        try:
            if jax.process_index():
                self._checked(step, files.verified)
        except files.Damaged as damage:
            raise RunFault(f"checkpoint {step} in {self._name} cannot be used: {damage}") from damage
        orbax.merge_processes(self.directory / str(step))

    def _content(self, step: int) -> bytes:
        """The manifest of a checkpoint in the store. Raises Damaged if there is none."""
        content = self._manifest_in_store(step)
        if content is None:
            raise files.Damaged(f"{files.MANIFEST} is not in {self._store.url}")
        return content

    def _manifest_in_store(self, step: int) -> bytes | None:
        return self._store_does(lambda: self._store.read(_manifest(step)))

    @staticmethod
    def _is_copy(local: Path, content: bytes) -> bool:
        with contextlib.suppress(OSError):
            return (local / files.MANIFEST).read_bytes() == content
        return False

    def _store_does(self, action: Callable[[], Any]) -> Any:
        if self._lease:
            return remote.persistent(self._store.url, action)
        with remote.user_errors(self._store.url, FileNotFoundError):
            return action()


def _manifest(step: int) -> str:
    return f"{CHECKPOINTS}/{step}/{files.MANIFEST}"


def _list(step: int, process: int | None = None) -> str:
    """The name of the list of what a process has written of a checkpoint, or of the folder of all lists."""
    folder = f"{CHECKPOINTS}/{UNFINISHED}{step}"
    return folder if process is None else f"{folder}/{process}.json"


