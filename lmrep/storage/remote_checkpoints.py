"""Checkpoints in a remote store, written by one process or by several that share no file system.

    URL/checkpoints/1000/                 as in a local workdir; manifest.json is written last
    URL/checkpoints/.unfinished-2000/3.json    the files that process 3 has uploaded of a checkpoint in progress

Each process lets Orbax write its shards to a local directory, uploads these files, and then their names, sizes and
SHA-256s. Then process 0 writes the manifest with the files of all processes. So a checkpoint in the store is complete
if it has a manifest, no process reads files of another, and training waits for the store only when the next checkpoint
is due.

(Orbax 0.12 writes to `gs://` but not to `s3://`, and its files could only be verified by reading them back.)

To restore a checkpoint, each process downloads all of its files, and merges the OCDBT databases of the processes:
during a save, no process has all of them.
"""

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
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
OTHERS_SECONDS = 3600.0  # the longest wait of process 0 for the uploads of the other processes
POLL_SECONDS = 0.5
# Seconds between two checks of the lease while files are uploaded. An upload that began before another run took the
# lease continues. If it replaces a file of that run, the manifest does not match, and the checkpoint counts as damaged.
LEASE_SECONDS = 5.0

log = logging.getLogger(__name__)


def complete_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps of complete checkpoints, given the names of the files of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(p[1]) for p in parts if len(p) == 3 and p[0] == CHECKPOINTS and p[1].isdecimal()
                  and p[2] == files.MANIFEST)


class FileList(TypedDict):
    """The files that a process has uploaded."""

    lease: Any  # the identity of the run's lease
    files: dict[str, list[Any]]  # name -> [size, SHA-256]


class RemoteCheckpoints(Checkpoints):
    """The checkpoints of a run in a remote store.

    Args:
      directory: the local directory of this process, for uploads and downloads; a single process also keeps copies of
        checkpoints there.
      keep, keep_best, best, always: as for `Checkpoints`.
      store: the store of the run.
      lease: the lease of the run; None to read only.
      upload_logs: called by process 0 before a checkpoint becomes complete, to upload the logs up to it.
      reuse: a directory that may have local copies of the same checkpoints.
    """

    _shared = False

    def __init__(
        self, directory: str | os.PathLike, keep: int = 3, keep_best: int = 1, best: str = "min",
        always: Collection[int] = (), *, store: Store, lease: Lease | None = None,
        upload_logs: Callable[[], None] = lambda: None, reuse: Path | None = None,
    ):
        super().__init__(directory, keep, keep_best, best, always)
        self._best, self._store, self._lease, self._upload_logs = best, store, lease, upload_logs
        self._name, self._reuse = f"{store.url}/{CHECKPOINTS}", reuse

    # Writing

    def save(self, step: int, state: Any, meta: dict, score: float | None = None) -> None:
        self.wait()
        # An existing checkpoint of this step may be damaged. It must not seem complete while it is replaced.
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

        def upload(name: str) -> None:
            self._lease.check(LEASE_SECONDS)
            self._store.upload(local / name, f"{CHECKPOINTS}/{step}/{name}")
            missing.discard(name)

        self._store_does(lambda: transfer(upload, sorted(missing)))

    def _files_of(self, process: int, step: int) -> dict[str, list]:
        """Waits for the uploads of another process, and returns {name: [size, SHA-256]} of its files."""
        deadline = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < deadline:
            content = self._store_does(lambda: self._store.read(_list(step, process)))
            if content and (uploaded := json_files.parse(FileList, content))["lease"] == self._lease.identity:
                return uploaded["files"]
            time.sleep(POLL_SECONDS)
            self._store_does(self._lease.check)
        raise RunFault(f"process {process} has not uploaded its files within {OTHERS_SECONDS:.0f} s")

    def _remove_step(self, step: int) -> None:
        def remove() -> None:
            if self._lease:
                self._lease.check(0)
            self._store.remove(_manifest(step))  # first, so that readers do not see it half deleted
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
        """Downloads checkpoint `step`, by default the newest undamaged one, and returns its step; None if there are no
        checkpoints. Other processes need not call it. Raises RunFault if all candidates are damaged."""
        return self._first_verified(self.steps()[::-1] if step is None else [step])

    def download_best(self) -> int | None:
        """Downloads the undamaged checkpoint with the best score, as `download`; None if none has a score."""
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
        """Downloads the checkpoint whose manifest is `content` to the local directory."""
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
        """Makes the local copy from hard links to the copy in `reuse`, and returns whether that succeeded: another
        process may delete that copy at any time."""
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
        def copy_and_merge() -> None:  # process 0 has downloaded and verified it
            try:
                if jax.process_index():
                    self._checked(step, files.verified)
            except files.Damaged as damage:
                raise RunFault(f"checkpoint {step} in {self._name} cannot be used: {damage}") from damage
            orbax.merge_processes(self.directory / str(step))

        agreed(copy_and_merge)
        values = super()._load(step, *arguments)
        if jax.process_count() > 1:
            shutil.rmtree(self.directory / str(step))
        return values

    def _content(self, step: int) -> bytes:
        """Returns the bytes of a checkpoint's manifest in the store. Raises Damaged if there is none."""
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
        """Calls `action`, and retries while the store fails if this run holds a lease. Returns the result."""
        if self._lease:
            return remote.persistent(self._store.url, action)
        with remote.user_errors(self._store.url, FileNotFoundError):
            return action()


def _manifest(step: int) -> str:
    return f"{CHECKPOINTS}/{step}/{files.MANIFEST}"


def _list(step: int, process: int | None = None) -> str:
    """Returns the name of a process's `FileList` of a checkpoint, or (None) of the folder of these lists."""
    folder = f"{CHECKPOINTS}/{UNFINISHED}{step}"
    return folder if process is None else f"{folder}/{process}.json"


