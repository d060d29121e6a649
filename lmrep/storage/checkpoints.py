"""Checkpoints that are written atomically and verified before they are used.

    checkpoints/
      1000/                   the files that Orbax wrote, and manifest.json: size and SHA-256 of every file, path, dtype
      2000/                   and shape of every array, the score, the caller's `meta`, and its own SHA-256
      .unfinished-3000...     a save in progress, or the remains of a killed save
      .removed-500            a checkpoint that is being deleted

Orbax writes to `.unfinished-3000`. Once its files are on the disk, the manifest is added and the directory renamed to
`3000`. So a directory whose name is a number was once complete, and the manifest shows whether it still is. Orbax alone
takes an empty directory for the latest step, loads a flipped bit, and casts float32 to bfloat16, all without an error.
The files hold raw arrays and JSON; nothing is unpickled or executed.

In a run of several processes, each process calls every method in the same order, on a file system that all share.
Without a shared file system, `remote_checkpoints` writes to an object store, in another format: see `shards`. A copy of
such a checkpoint on a disk is read here too.
"""

import contextlib
import errno
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from lmrep.core import files, remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.messages import byte_size
from lmrep.core.params import Tree, unflatten
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreement, gather_texts
from lmrep.storage import orbax, shards
from lmrep.storage.manifests import array_type, checked, leaves_by_path, mismatches, subtree

UNFINISHED = ".unfinished-"
REMOVED = ".removed-"

log = logging.getLogger(__name__)


class DamagedCheckpoint(RunFault):
    """A checkpoint is damaged, as was seen when it was read. `Checkpoints.newest` passes over it from then on."""


class Checkpoints:
    """The checkpoints in one directory.

    Args:
      directory: the directory, which the first save makes.
      keep: number of the newest checkpoints to keep, at least 1.
      keep_best: number of the checkpoints with the best scores to keep in addition.
      best: whether the best score is the "min" or the "max".
      always: steps to keep in addition.
    """

    _shared = True  # whether all processes share the directory

    def __init__(self, directory: str | os.PathLike, keep: int = 3, keep_best: int = 1, best: str = "min",
                 always: Collection[int] = ()):
        self.directory = Path(directory).absolute()
        self._name = str(self.directory)  # for messages
        self._keep, self._keep_best, self._sign = keep, keep_best, 1 if best == "min" else -1
        self.always = frozenset(always)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future | None = None
        self._damaged: dict[int, str] = {}  # step -> what was found when its arrays were read

    @cached_property
    def _orbax(self) -> ocp.AsyncCheckpointer:
        return orbax.checkpointer(self._shared)

    # Writing

    def save(self, step: int, state: Tree, meta: dict, score: float | None = None) -> None:
        """Starts to save `state` as checkpoint `step`. The caller may donate its arrays as soon as this returns.

        Args:
          step: the step of the checkpoint; an existing checkpoint of this step is replaced.
          state: a pytree of arrays.
          meta: JSON that a resumed run needs.
          score: orders checkpoints for `keep_best` and `best`; None or NaN for no score.

        Raises:
          RunFault: the previous save failed, or the disk has too little space for this one.
        """
        self.wait()
        arrays = leaves_by_path(state)
        score = None if score is None or math.isnan(score) else float(score)
        manifest = {"step": int(step), "score": score, "meta": json.loads(json.dumps(meta)),
                    "arrays": {path: array_type(x) for path, x in arrays.items()}}
        needed = sum(x.nbytes for x in arrays.values())
        try:
            with jax.transfer_guard("allow"):  # the training loop may disallow transfers
                complete = self._start(step, arrays, manifest, needed)
        except (OSError, ValueError) as error:
            raise self._failure(step, needed, error) from error

        def finish() -> None:
            try:
                complete()
            except Exception as error:
                raise self._failure(step, needed, error) from error

        self._damaged.pop(step, None)
        self._pending = self._thread.submit(finish)

    def wait(self) -> None:
        """Waits until the save in progress, if any, is complete.

        Raises:
          RunFault: the save failed, on this process or another. Earlier checkpoints are untouched.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        error = pending.exception()
        failures = np.sum(multihost_utils.process_allgather(np.asarray(error is not None)))
        if error is not None:
            raise error
        if failures:
            raise RunFault("saving a checkpoint failed on another process; see the message of that process")

    def check(self) -> None:
        """Raises RunFault if this run may no longer save checkpoints. Does not block: it is called after every step."""

    def close(self) -> None:
        """Waits for the save in progress as `wait`, and ends the threads."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            if "_orbax" in vars(self):
                self._orbax.close()

    def clean(self) -> None:
        """Removes the remains of killed saves and deletions, and empty directories beside checkpoints, and completes a
        save that only lacked its final name. Only the holder of the workdir's lock may call it, because the remains
        look like a save in progress.

        Raises:
          RunFault: a file cannot be removed.
        """
        if jax.process_index() != 0:
            return
        try:
            for leftover in sorted(self.directory.glob(f"{UNFINISHED}*")):
                self._complete_or_remove(leftover)
            for leftover in self.directory.glob(f"{REMOVED}*"):
                files.remove(leftover)
            filled, empty = self._directories()
            for step in empty if filled else ():
                (self.directory / str(step)).rmdir()
                log.info("removed %s, an empty directory", self.directory / str(step))
        except OSError as error:
            raise RunFault(f"{error.filename or self.directory} cannot be removed: {error.strerror}; remove it by "
                           "hand, or give another --workdir") from error

    def _complete_or_remove(self, leftover: Path) -> None:
        step = leftover.name.removeprefix(UNFINISHED)
        with contextlib.suppress(files.Damaged):
            if _is_step(step) and files.verified(leftover).get("step") == int(step):
                self._rename_to_final(int(step))
                log.info("checkpoint %s was complete, but not renamed before its run was killed; it is now", step)
                return
        files.remove(leftover)
        log.info("removed %s, left by a save that was killed", leftover)

    def drop_after(self, step: int | None) -> None:
        """Deletes the checkpoints after `step` (all, if None), because the run resumes there."""
        self.wait()
        if jax.process_index() == 0:
            for later in self.steps():
                if step is None or later > step:
                    self._remove_step(later)
        multihost_utils.sync_global_devices("dropped")

    # Overridden for remote stores

    def _start(self, step: int, arrays: dict[str, Any], manifest: dict, needed: int) -> Callable[[], None]:
        """Starts to save arrays of `needed` bytes. They may change once it returns. Returns a function that completes
        the save, which a thread calls."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0:
            self._drop_unfinished(step)
        if shutil.disk_usage(self.directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if jax.process_index() == 0:  # if Orbax cannot make a directory, its threads keep the process from ending
            self._unfinished(step).mkdir()
            self._unfinished(step).rmdir()
        orbax.save(self._orbax, self._unfinished(step), arrays)

        def complete() -> None:
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                files.seal(self._unfinished(step), manifest)
                self._rename_to_final(step)
                self._delete_old(step)

        return complete

    def _remove_step(self, step: int) -> None:
        """Deletes a checkpoint."""
        shutil.rmtree(self._set_aside(step))

    # On the disk

    def _rename_to_final(self, step: int) -> None:
        final = self.directory / str(step)
        if final.exists():
            self._set_aside(step)
        self._unfinished(step).rename(final)
        files.sync(self.directory)
        with contextlib.suppress(OSError):
            files.remove(self.directory / f"{REMOVED}{step}")

    def _set_aside(self, step: int) -> Path:
        """Renames a checkpoint, so that readers do not see it half deleted, and returns the new path."""
        removed = self.directory / f"{REMOVED}{step}"
        files.remove(removed)
        return (self.directory / str(step)).rename(removed)

    def _delete_old(self, step: int) -> None:
        """Deletes the checkpoints that `keep`, `keep_best` and `always` exclude, once `step` is complete. Later ones
        are ignored: they were damaged when this run resumed."""
        steps = [s for s in self.steps() if s <= step]
        retained = steps[-self._keep :] + self._by_score(steps)[: self._keep_best]
        for old in set(steps) - set(retained) - self.always:
            self._remove_step(old)

    def _unfinished(self, step: int) -> Path:
        return self.directory / f"{UNFINISHED}{step}"

    def _drop_unfinished(self, step: int) -> None:
        for leftover in (self._unfinished(step), *self.directory.glob(f"{UNFINISHED}{step}.*")):
            files.remove(leftover)

    def _failure(self, step: int, needed: int, error: Exception) -> RunFault:
        """Removes the remains of a failed save, and returns the error to raise."""
        existing = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                self._drop_unfinished(step)
        steps = [s for s in self.steps() if s != step]
        before = f"Checkpoint {steps[-1]} is untouched" if steps else "There is no earlier checkpoint"
        return RunFault(
            f"checkpoint {step} could not be saved in {self._name}: {orbax.reason(error)} (it needs "
            f"{byte_size(needed)}; {byte_size(free)} are free). {before}; fix the cause and give the same command "
            "again.")

    # Reading

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, damaged or not, in order. If all directories are empty, returns
        their steps, so that a run whose checkpoints were emptied does not start over."""
        filled, empty = self._directories()
        return filled or empty

    def _directories(self) -> tuple[list[int], list[int]]:
        """Returns (steps whose directories hold files, steps whose directories are empty), in order."""
        steps: tuple[list[int], list[int]] = [], []
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if _is_step(path.name) and path.is_dir():
                steps[not any(path.iterdir())].append(int(path.name))
        return sorted(steps[0]), sorted(steps[1])

    def newest(self, accept: Callable[[int], bool] = lambda step: True) -> int | None:
        """Returns the newest step that `accept` accepts and whose checkpoint is undamaged; None if `accept` accepts no
        step. Damaged checkpoints are skipped with a warning.

        Raises:
          RunFault: all accepted checkpoints are damaged.
        """
        return by_first_process(lambda: self._first_verified([step for step in self.steps()[::-1] if accept(step)]))

    def best(self) -> int | None:
        """Returns the step of the best score whose checkpoint is undamaged; None if none has a score. Raises as
        `newest`."""
        return by_first_process(lambda: self._first_verified(self._by_score(self.steps())))

    def meta(self, step: int) -> dict:
        """Returns the `meta` of checkpoint `step`. Reads only the manifest.

        Raises:
          RunFault: the checkpoint is missing, or its manifest is damaged.
        """
        return self._manifest(step, files.manifest)["meta"]

    def holds(self, step: int, part: str) -> bool:
        """Returns whether checkpoint `step` has arrays at or below the path `part`. Raises as `meta`."""
        return bool(subtree(part, self._manifest(step, files.manifest)["arrays"]))

    def read(self, step: int, part: str = "") -> tuple[Tree, dict]:
        """Reads checkpoint `step` into this process's memory: (nested dict of numpy arrays, meta). Tuples and named
        tuples become dicts, keyed by index or field name.

        Args:
          part: path of the subtree to read, such as "params" or "params/encoder"; "" for everything.

        Raises:
          RunFault: the checkpoint is missing or damaged.
          UserError: the checkpoint has no such subtree.
        """
        manifest = self._manifest(step, files.verified)
        arrays = subtree(part, manifest["arrays"])
        if not arrays:
            names = sorted({path.split("/")[0] for path in manifest["arrays"]})
            raise UserError(f"checkpoint {step} has no {part!r}; at its top it has {', '.join(names)}")
        tree = unflatten(self._load(step, manifest, arrays, dict.fromkeys(arrays)))
        for key in filter(None, part.split("/")):
            tree = tree[key]
        return tree, manifest["meta"]

    def restore(self, step: int, target: Tree, part: str = "") -> tuple[Tree, dict]:
        """Restores checkpoint `step` with the structure and shardings of `target`: (state, meta). The number of devices
        may differ from that of the save.

        Args:
          target: a pytree of jax.ShapeDtypeStruct with exactly the entries of the checkpoint; a leaf without a sharding
            goes to this process's first device.
          part: path of the subtree that `target` describes, such as "params"; "" for everything.

        Raises:
          RunFault: the checkpoint is missing or damaged.
          UserError: an entry is missing, extra, or of another shape or dtype; the message lists all of them.
        """
        manifest = self._manifest(step, files.verified)
        saved, expected = subtree(part, manifest["arrays"]), leaves_by_path(target, part)
        if lines := mismatches(saved, expected):
            raise UserError("\n  ".join([f"checkpoint {step} in {self._name} does not fit this run:", *lines]))
        first_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shardings = {path: getattr(x, "sharding", None) or first_device for path, x in expected.items()}
        values = self._load(step, manifest, saved, shardings)
        return jax.tree.unflatten(jax.tree.structure(target), [values[path] for path in expected]), manifest["meta"]

    def _load(self, step: int, manifest: dict, arrays: dict[str, str],
              shardings: dict[str, jax.sharding.Sharding | None]) -> dict[str, Any]:
        """Reads the arrays at the paths of `arrays` ({path: dtype and shape}), with these shardings, or (None) as numpy
        arrays. Raises DamagedCheckpoint on all processes if one finds damage."""
        values, damage = {}, ""
        with agreement(), self._usable(step):
            try:
                if "zarr3" in manifest:
                    self._attempt(lambda: shards.load(self._arrays(step, manifest), shardings, values))
                else:
                    self._prepare(step)
            except files.Damaged as error:
                damage = str(error)
        with self._usable(step):
            if damage := next(filter(None, gather_texts(damage) if jax.process_count() > 1 else [damage]), ""):
                self._damaged[step] = damage
                raise files.Damaged(damage)
            # May fail by the file system, or by a directory's name; the files are verified.
            return values if "zarr3" in manifest else orbax.load(
                self._orbax, self.directory / str(step), arrays, shardings)

    def _prepare(self, step: int) -> None:
        """Prepares the files of Orbax for reading. Raises Damaged."""
        if jax.process_index() == 0:  # it may be a copy of a run in a store
            orbax.merge_processes(self.directory / str(step))

    def _arrays(self, step: int, manifest: dict) -> shards.Arrays:
        """Opens the arrays of a checkpoint that `shards` has written."""
        folder, grids = self.directory / str(step) / manifest["zarr3"]["folder"], manifest["zarr3"]["grids"]
        return shards.Arrays(manifest["arrays"], grids, str(folder))

    def _attempt(self, action: Callable[[], Any]) -> Any:
        """Calls `action`, which reads or writes checkpoints, and returns its result."""
        return action()

    def _manifest(self, step: int, check: Callable[[Path], dict]) -> dict:
        """Returns the manifest of checkpoint `step`, which process 0 reads by `check`, on every process."""

        def read() -> dict:
            with self._usable(step):
                return self._checked(step, check)

        return by_first_process(read)

    @contextlib.contextmanager
    def _usable(self, step: int) -> Iterator[None]:
        """Turns Damaged and errors of the store or the file system, in reading a checkpoint, into RunFault."""
        try:
            yield
        except files.Damaged as damage:
            raise DamagedCheckpoint(f"checkpoint {step} in {self._name} cannot be used: {damage}") from damage
        except (OSError, ValueError) as error:  # ValueError of Orbax
            raise RunFault(f"checkpoint {step} in {self._name} cannot be read: {orbax.reason(error)}") from error

    def _checked(self, step: int, check: Callable[[Path], dict]) -> dict:
        return checked(check(self.directory / str(step)), step)

    def verify(self, step: int) -> None:
        """Raises Damaged if checkpoint `step` is damaged. Reads all of it."""
        manifest = self._checked(step, files.verified)
        if "zarr3" in manifest:
            arrays = self._arrays(step, manifest)
            try:
                remote.transfer(lambda path: arrays.read(path).size, manifest["arrays"])
            except OSError as error:
                raise files.Damaged(f"a file cannot be read ({remote.describe(error)})") from error

    def _first_verified(self, steps: Iterable[int]) -> int | None:
        failures = []
        for step in steps:
            try:
                if step in self._damaged:
                    raise files.Damaged(self._damaged[step])
                self.verify(step)
                return step
            except files.Damaged as damage:
                log.warning("checkpoint %d in %s is damaged and skipped: %s", step, self._name, damage)
                failures.append(f"{step}: {damage}")
        if failures:
            raise RunFault(
                f"none of the checkpoints in {self._name} is intact ({'; '.join(failures)}), and the run will not "
                "start over by itself. Restore an intact copy of one, or give another --workdir.")
        return None

    def _by_score(self, steps: list[int]) -> list[int]:
        """Returns the steps that have a score, best first, and of equal scores the earlier first."""
        scores = {}
        for step in steps:
            try:
                scores[step] = self._checked(step, files.manifest)["score"]
            except files.Damaged:
                continue  # `_first_verified` reports the damage of a checkpoint that is needed
        return sorted((s for s in scores if scores[s] is not None), key=lambda s: self._sign * scores[s])


def _is_step(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))
