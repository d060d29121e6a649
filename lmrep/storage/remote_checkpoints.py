"""Checkpoints in a remote store, written by one process or by several that share no file system.

    URL/checkpoints/1000/manifest.json         written last: a checkpoint is complete if it has one
    URL/checkpoints/1000/5f0a8c21/...          its arrays (see `shards`), in a folder that no other run writes to
    URL/checkpoints/.unfinished-2000/3         process 3 has written its files of a checkpoint in progress

Each process writes its shards from a copy in its memory, straight to the store, and then says so in the store.
Process 0 waits for the others and writes the manifest. So training waits for the store only when the next checkpoint
is due. To restore a checkpoint, each process reads what its devices hold. Nothing is written to the local disk.

Earlier versions uploaded the files that Orbax wrote, with one OCDBT database for each process. Each process downloads
such a checkpoint to restore it.
"""

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from lmrep.core import files, object_store, remote
from lmrep.core.errors import RunFault
from lmrep.core.remote import Store, transfer
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed
from lmrep.storage import orbax, shards, workdir
from lmrep.storage.checkpoints import UNFINISHED, Checkpoints
from lmrep.storage.lease import Lease, LeaseLost
from lmrep.storage.manifests import checked
from lmrep.storage.workdir import CONFIG

CHECKPOINTS = "checkpoints"
OTHERS_SECONDS = 3600.0  # the longest wait of process 0 for the other processes
POLL_SECONDS = 0.5
LEASE_SECONDS = 5.0  # between two checks of the lease while files are written

log = logging.getLogger(__name__)


def complete_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps of complete checkpoints, given the names of the files of a run."""
    parts = [name.split("/") for name in names]
    return sorted(int(p[1]) for p in parts if len(p) == 3 and p[0] == CHECKPOINTS and p[1].isdecimal()
                  and p[2] == files.MANIFEST)


class RemoteCheckpoints(Checkpoints):
    """The checkpoints of a run in a remote store.

    Args:
      directory: the local directory for copies of checkpoints of earlier versions, called "checkpoints".
      *arguments, **options: as for `Checkpoints`.
      store: the store of the run.
      lease: the lease of the run; None to read only.
      upload_logs: called by process 0 before a checkpoint becomes complete, to upload the logs up to it.
    """

    _shared = False

    def __init__(self, directory: Path, *arguments: Any, store: Store, lease: Lease | None = None,
                 upload_logs: Callable[[], None] = lambda: None, **options: Any):
        super().__init__(directory, *arguments, **options)
        self._store, self._lease, self._upload_logs = store, lease, upload_logs
        self._name = f"{store.url}/{CHECKPOINTS}"

    # Writing

    def save(self, step: int, state: Any, meta: dict, score: float | None = None) -> None:
        self.wait()
        # An existing checkpoint of this step may be damaged.
        by_first_process(lambda: self._remove_step(step) if step in self.steps() else None)
        super().save(step, state, meta, score)

    def check(self) -> None:
        # Several processes agree on a step to stop after: see `remote_workdir`.
        if jax.process_count() == 1 and self._lease and self._lease.lost:
            raise LeaseLost(f"{self._lease.lost}; this run stops, since only one may write there")

    def clean(self) -> None:
        agreed(lambda: self._tensorstore)  # where it writes to the store, before process 0 looks for remains
        agreed(self._clean)

    def _clean(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)  # copies that an earlier version has left
        if jax.process_index() == 0:
            names = self._attempt(lambda: self._store.names(CHECKPOINTS))
            for folder in sorted({name.split("/")[1] for name in names} - {*map(str, complete_steps(names))}):
                self._attempt(lambda folder=folder: self._store.remove(f"{CHECKPOINTS}/{folder}"))
                log.info("removed %s/%s/%s, left by a save that was killed", self._store.url, CHECKPOINTS, folder)

    def _start(self, step: int, arrays: dict[str, Any], manifest: dict, needed: int) -> Callable[[], None]:
        grids = {path: shards.grid(x) for path, x in arrays.items()}
        pieces = shards.copied(arrays, grids)
        manifest = manifest | {"files": {}, "zarr3": {
            "folder": self._lease.identity[:8], "grids": grids}}
        return lambda: self._write(step, manifest, pieces)

    def _write(self, step: int, manifest: dict, pieces: dict[int, shards.Piece]) -> None:
        """Writes the files of this process, `pieces`, and on process 0 then the manifest."""
        index, arrays = jax.process_index(), self._arrays(step, manifest)

        def write(number: int) -> None:
            self._lease.check(LEASE_SECONDS)
            arrays.write(pieces[number])
            del pieces[number]

        self._attempt(lambda: self._lease.check(0))
        self._attempt(lambda: transfer(write, [*pieces]))
        if index:
            return self._attempt(lambda: self._store.write(_written(step, index), self._lease.identity.encode()))
        for process in range(1, jax.process_count()):
            self._wait_for(process, step)
        content = json.dumps(files.signed(manifest)).encode()
        self._attempt(self._upload_logs)
        self._attempt(lambda: self._lease.check(0))
        self._attempt(lambda: self._store.write(_manifest(step), content))
        self._attempt(lambda: self._store.remove(_written(step)))
        return self._delete_old(step)

    def _wait_for(self, process: int, step: int) -> None:
        """Waits until another process has written its files."""
        deadline = time.monotonic() + OTHERS_SECONDS
        while self._attempt(lambda: self._store.read(_written(step, process))) != self._lease.identity.encode():
            if time.monotonic() > deadline:
                raise RunFault(f"process {process} has not written its files within {OTHERS_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
            self._attempt(self._lease.check)

    def _remove_step(self, step: int) -> None:
        def remove() -> None:
            self._lease.check(0)
            self._store.remove(_manifest(step))  # first, so that readers do not see it half deleted
            self._store.remove(f"{CHECKPOINTS}/{step}")

        self._attempt(remove)
        shutil.rmtree(self.directory / str(step), ignore_errors=True)

    def _failure(self, step: int, needed: int, error: Exception) -> RunFault:
        reason = error if isinstance(error, RunFault) else orbax.reason(error)
        return RunFault(f"checkpoint {step} could not be saved in {self._name}: {reason}. Earlier checkpoints are "
                        "untouched; fix the cause and give the same command again.")

    # Reading

    def _directories(self) -> tuple[list[int], list[int]]:
        return complete_steps(self._attempt(lambda: self._store.names(CHECKPOINTS))), []

    def _checked(self, step: int, check: Callable[[Path], dict]) -> dict:
        return checked(files.parse_manifest(self._content(step)), step)

    def verify(self, step: int) -> None:
        """Raises Damaged if the manifest of checkpoint `step` is damaged. Its shards are verified when they are read;
        files of Orbax here, in a copy."""
        if "zarr3" not in self._checked(step, files.manifest):
            self._prepare(step)

    def _prepare(self, step: int) -> None:
        """Makes an undamaged copy of a checkpoint that Orbax wrote, and removes other copies. Raises Damaged."""
        content, copy, folder = self._content(step), self.directory / str(step), f"{CHECKPOINTS}/{step}"
        with workdir.exclusive(self.directory.parents[1] / ".download"):
            with contextlib.suppress(files.Damaged, OSError):
                if (copy / files.MANIFEST).read_bytes() == content:
                    files.verified(copy)
                    return orbax.merge_processes(copy)
            log.info("downloading checkpoint %s from %s", f"{step:,}", self._store.url)
            shutil.rmtree(copy, ignore_errors=True)
            names = [name for name in self._attempt(lambda: self._store.names(folder)) if name != _manifest(step)]
            self._attempt(lambda: transfer(
                lambda name: self._store.download(name, self.directory.parent / name), names))
            copy.mkdir(parents=True, exist_ok=True)
            (copy / files.MANIFEST).write_bytes(content)  # last, as in the store
            files.verified(copy)
            orbax.merge_processes(copy)
            for other in {*self.directory.iterdir()} - {copy}:
                files.remove(other)

    def _load(self, step: int, *arguments: Any) -> dict[str, Any]:
        values = super()._load(step, *arguments)
        if self._lease:  # the run writes its next checkpoint as shards
            shutil.rmtree(self.directory / str(step), ignore_errors=True)
        return values

    def _arrays(self, step: int, manifest: dict) -> shards.Arrays:
        folder, grids = f"{CHECKPOINTS}/{step}/{manifest['zarr3']['folder']}", manifest["zarr3"]["grids"]
        return shards.Arrays(manifest["arrays"], grids, folder, self._store, self._tensorstore)

    @cached_property
    def _tensorstore(self) -> dict[str, Any] | None:
        """Describes the store for TensorStore; None if that has no driver for it, or finds no credentials."""
        spec, probe = object_store.native(self._store), f"{CHECKPOINTS}/{UNFINISHED}probe/{jax.process_index()}"
        if spec and (reason := object_store.refusal(spec, *((probe, True) if self._lease else (CONFIG, False)))):
            log.warning("TensorStore cannot %s %s, but fsspec can: %s; checkpoints are transferred by fsspec, in whole "
                        "files", "write to" if self._lease else "read", self._store.url, reason)
            return None
        return spec

    def _content(self, step: int) -> bytes:
        """Returns the bytes of a checkpoint's manifest in the store. Raises Damaged if there is none."""
        content = self._attempt(lambda: self._store.read(_manifest(step)))
        if content is None:
            raise files.Damaged(f"{files.MANIFEST} is not in {self._store.url}")
        return content

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Calls `action`, and retries while the store fails if this run holds a lease. Returns the result."""
        if self._lease:
            return remote.persistent(self._store.url, action)
        with remote.user_errors(self._store.url, FileNotFoundError):
            return action()


def _manifest(step: int) -> str:
    return f"{CHECKPOINTS}/{step}/{files.MANIFEST}"


def _written(step: int, process: int | str = "") -> str:
    """Returns the name of the file by which a process says that it has written a checkpoint, or of their folder."""
    return f"{CHECKPOINTS}/{UNFINISHED}{step}/{process}".rstrip("/")
