"""Checkpoints that were whole once, and are checked before they are believed.

    checkpoints/
      1000/                   what Orbax wrote, and manifest.json: size and SHA-256 of every file, path, dtype and shape
      2000/                   of every array, the score, and the caller's `meta`; signed with its own SHA-256
      .unfinished-3000...     a save under way, or what a killed one left
      .removed-500            a checkpoint being deleted

Orbax writes under a name that no reader takes for a checkpoint. Once all of it is on the disk the manifest is added,
and one rename makes it `3000`. So a directory with a plain number was whole once, and the manifest tells if it still
is: by itself Orbax takes an empty directory for the latest step, loads a flipped bit, and casts float32 to bfloat16,
each in silence. The files hold raw arrays and JSON; nothing in them is unpickled or run.

In a run of several processes each calls every method here, in the same order, on a file system that all share.
"""

import errno
import json
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Tree, flatten, unflatten
from lmrep.distributed.agreement import by_first_process
from lmrep.storage import workdir

UNFINISHED = ".unfinished-"
REMOVED = ".removed-"

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints in one directory. Kept are the newest `keep` and the `keep_best` of best score.

    Args:
      directory: where they are or will be; made by the first save.
      keep: how many of the newest to keep, at least 1.
      keep_best: how many of the best-scored to keep beside them.
      best: "min" or "max", the end of the scores that is best.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 3, keep_best: int = 1, best: str = "min"):
        if keep < 1 or keep_best < 0 or best not in ("min", "max"):
            found = f"keep {keep}, keep_best {keep_best} and best {best!r}"
            raise UserError(f"checkpoints have {found}; expected at least 1, at least 0, and min or max")
        self.directory = Path(directory).absolute()
        self._keep, self._keep_best, self._sign = keep, keep_best, 1 if best == "min" else -1
        # Float parameters hardly shrink (8 %), and compressing them takes cores from the training.
        self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future | None = None
        _quieten_orbax()

    # Writing

    def save(self, step: int, state: Tree, meta: dict, score: float | None = None) -> None:
        """Starts to save `state` as checkpoint `step`, and returns when its arrays are copied or held: the caller may
        donate them at once. A checkpoint of the same step is replaced.

        Args:
          step: names the checkpoint.
          state: a pytree of arrays.
          meta: what else a resumed run needs; JSON.
          score: what retention and `best` go by; None or NaN for none.

        Raises:
          RunFault: the save before this one failed, or this one has no room on the disk.
        """
        self.wait()
        arrays = _leaves(state)
        score = None if score is None or math.isnan(score) else float(score)
        manifest = {"step": int(step), "score": score, "meta": json.loads(json.dumps(meta)),
                    "arrays": {path: _kind(x) for path, x in arrays.items()}}
        needed = sum(x.nbytes for x in arrays.values())
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:
                self._drop_unfinished(step)
            if shutil.disk_usage(self.directory).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Orbax refuses arrays of size zero; their shape and dtype in the manifest say all of them.
            tree = unflatten({path: x for path, x in arrays.items() if x.size})
            with jax.transfer_guard("allow"):  # the loop may refuse transfers; this one is meant
                self._orbax.save(self._unfinished(step), args=ocp.args.PyTreeSave(tree))
        except (OSError, ValueError) as error:
            raise self._fault(step, needed, error) from error
        self._pending = self._thread.submit(self._finish, step, manifest, needed)

    def wait(self) -> None:
        """Returns when the save under way, if any, is in place.

        Raises:
          RunFault: it failed, on this process or another; the checkpoints before it are untouched.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        fault = pending.exception()
        failed = np.sum(multihost_utils.process_allgather(np.asarray(fault is not None)))
        if fault is not None:
            raise fault
        if failed:
            raise RunFault("saving a checkpoint failed on another process; its own message says why")

    def close(self) -> None:
        """`wait`, and an end to the threads."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._orbax.close()

    def clean(self) -> None:
        """Clears what killed saves and deletions left, and puts a save in place that lacked nothing but its name. For
        the holder of the workdir's lock alone: to anyone else a save under way looks the same."""
        if jax.process_index() != 0:
            return
        for draft in sorted(self.directory.glob(f"{UNFINISHED}*")):
            step = draft.name.removeprefix(UNFINISHED)
            try:
                workdir.verified(draft)
                self._put_in_place(int(step))
                log.info("checkpoint %s was whole but not yet in place when its run was killed; it is now", step)
            except workdir.Damaged:
                shutil.rmtree(draft)
                log.info("removed %s, left by a save that was killed", draft)
        for removed in self.directory.glob(f"{REMOVED}*"):
            shutil.rmtree(removed)

    def drop_after(self, step: int | None) -> None:
        """Deletes the checkpoints after `step`, all where that is None: the run goes back there."""
        self.wait()
        if jax.process_index() == 0:
            for later in self.steps():
                if step is None or later > step:
                    shutil.rmtree(self._set_aside(later))
        multihost_utils.sync_global_devices("dropped")

    def _finish(self, step: int, manifest: dict, needed: int) -> None:
        """The rest of a save, on a thread of its own."""
        try:
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                workdir.seal(self._unfinished(step), manifest)
                self._put_in_place(step)
                self._retire(step)
        except Exception as error:
            raise self._fault(step, needed, error) from error

    def _put_in_place(self, step: int) -> None:
        final = self.directory / str(step)
        if final.exists():
            self._set_aside(step)
        self._unfinished(step).rename(final)
        workdir.sync(self.directory)
        shutil.rmtree(self.directory / f"{REMOVED}{step}", ignore_errors=True)

    def _set_aside(self, step: int) -> Path:
        """Takes a checkpoint out of every reader's sight in one step, for a half-deleted one must not be met."""
        removed = self.directory / f"{REMOVED}{step}"
        shutil.rmtree(removed, ignore_errors=True)
        return (self.directory / str(step)).rename(removed)

    def _retire(self, step: int) -> None:
        """Deletes what retention does not keep, now that `step` is in place. Later ones were found damaged when this
        run resumed; they must not push a whole one out."""
        steps = [s for s in self.steps() if s <= step]
        kept = steps[-self._keep :] + self._by_score(steps)[: self._keep_best]
        for old in set(steps) - set(kept):
            shutil.rmtree(self._set_aside(old))

    def _unfinished(self, step: int) -> Path:
        return self.directory / f"{UNFINISHED}{step}"

    def _drop_unfinished(self, step: int) -> None:
        for draft in (self._unfinished(step), *self.directory.glob(f"{UNFINISHED}{step}.*")):
            shutil.rmtree(draft, ignore_errors=True)

    def _fault(self, step: int, needed: int, error: Exception) -> RunFault:
        """What to tell of a save that failed; gives the space of its remains back."""
        by_system = re.search(r"([^:]+) \[os_error_code", str(error))  # at the end of TensorStore's long messages
        reason = by_system[1].strip() if by_system else getattr(error, "strerror", None) or str(error)
        place = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        free = shutil.disk_usage(place).free
        if jax.process_index() == 0:
            self._drop_unfinished(step)
        steps = [s for s in self.steps() if s != step]
        before = f"Checkpoint {steps[-1]} is untouched" if steps else "There is no earlier checkpoint"
        return RunFault(
            f"checkpoint {step} could not be saved in {self.directory}: {reason} (it needs {_bytes(needed)}; "
            f"{_bytes(free)} are free). {before}; mend the cause and give the same command again.")

    # Reading

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or not, in order."""
        names = [p.name for p in self.directory.iterdir() if p.is_dir()] if self.directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def newest(self, wanted: Callable[[int], bool] = lambda step: True) -> int | None:
        """The newest step that is `wanted` and whose checkpoint verifies; None where there are no such checkpoints.
        Each damaged one on the way is named in a warning.

        Raises:
          RunFault: there are checkpoints, and none verifies.
        """
        return by_first_process(lambda: self._first_whole([step for step in self.steps()[::-1] if wanted(step)]))

    def best(self) -> int | None:
        """The step of best score whose checkpoint verifies; None where none has a score. Raises as `newest`."""
        return by_first_process(lambda: self._first_whole(self._by_score(self.steps())))

    def meta(self, step: int) -> dict:
        """The `meta` that checkpoint `step` was saved with. Reads the manifest alone.

        Raises:
          RunFault: the checkpoint is missing, or its manifest is damaged.
        """
        return self._trusted(step, workdir.manifest)["meta"]

    def holds(self, step: int, part: str) -> bool:
        """Whether checkpoint `step` has the subtree at that path. Raises as `meta`."""
        return bool(_within(part, self._trusted(step, workdir.manifest)["arrays"]))

    def read(self, step: int, part: str = "") -> tuple[Tree, dict]:
        """Checkpoint `step` as it is, in this process's memory: (nested dict of numpy arrays, meta). Tuples and records
        of the state come as dicts whose keys are their indices and field names.

        Args:
          part: path of the subtree to read, such as "params" or "params/encoder"; "" for everything.

        Raises:
          RunFault: the checkpoint is missing or damaged.
          UserError: it has no such part.
        """
        manifest = self._trusted(step, workdir.verified)
        arrays = _within(part, manifest["arrays"])
        if not arrays:
            names = sorted({path.split("/")[0] for path in manifest["arrays"]})
            raise UserError(f"checkpoint {step} has no {part!r}; at its top it has {', '.join(names)}")
        tree = unflatten(self._load(step, arrays, {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in arrays}))
        for key in filter(None, part.split("/")):
            tree = tree[key]
        return tree, manifest["meta"]

    def restore(self, step: int, target: Tree, part: str = "") -> tuple[Tree, dict]:
        """Checkpoint `step` in the structure, and with the shardings, of `target`: (state, meta). The devices may be
        others, or another number, than those it was saved on.

        Args:
          target: a pytree of jax.ShapeDtypeStruct with shardings, of exactly the entries that the checkpoint has; a
            leaf without a sharding goes to this process's first device.
          part: path of the subtree that `target` stands for, such as "params"; "" for everything.

        Raises:
          RunFault: the checkpoint is missing or damaged.
          UserError: an entry is missing, extra, or of another shape or dtype; all of them are named.
        """
        manifest = self._trusted(step, workdir.verified)
        saved, wanted = _within(part, manifest["arrays"]), _leaves(target, part)
        if misfits := _misfits(saved, wanted):
            raise UserError(f"checkpoint {step} in {self.directory} does not fit this run:\n  " + "\n  ".join(misfits))
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        places = {path: getattr(x, "sharding", None) or here for path, x in wanted.items()}
        how = {path: ocp.ArrayRestoreArgs(sharding=places[path], global_shape=x.shape, dtype=x.dtype)
               for path, x in wanted.items()}
        values = self._load(step, saved, how)
        return jax.tree.unflatten(jax.tree.structure(target), [values[path] for path in wanted]), manifest["meta"]

    def _load(self, step: int, arrays: dict[str, str], how: dict[str, ocp.RestoreArgs]) -> dict[str, Any]:
        """The arrays at the paths of `arrays` ({path: kind}), each restored as `how` says."""
        abstract = {path: _abstract(kind) for path, kind in arrays.items()}
        full = {path: x for path, x in abstract.items() if x.size}
        request = ocp.args.PyTreeRestore(
            item=unflatten(full), restore_args=unflatten({path: how[path] for path in full}), partial_restore=True)
        values = flatten(self._orbax.restore(self.directory / str(step), args=request)) if full else {}
        for path in abstract.keys() - full.keys():
            shape, dtype, place = abstract[path].shape, abstract[path].dtype, getattr(how[path], "sharding", None)
            values[path] = jnp.zeros(shape, dtype, device=place) if place else np.zeros(shape, dtype)
        return values

    def _trusted(self, step: int, check: Callable[[Path], dict]) -> dict:
        """The manifest of checkpoint `step` as `check` reads it, on every process."""

        def look() -> dict:
            try:
                return self._checked(step, check)
            except workdir.Damaged as damage:
                raise RunFault(f"checkpoint {step} in {self.directory} cannot be used: {damage}") from None

        return by_first_process(look)

    def _checked(self, step: int, check: Callable[[Path], dict]) -> dict:
        manifest = check(self.directory / str(step))
        if manifest.get("step") != step:
            raise workdir.Damaged(f"it is a copy of checkpoint {manifest.get('step')}")
        return manifest

    def _first_whole(self, steps: Iterable[int]) -> int | None:
        damages = []
        for step in steps:
            try:
                self._checked(step, workdir.verified)
                return step
            except workdir.Damaged as damage:
                log.warning("checkpoint %d in %s is damaged and skipped: %s", step, self.directory, damage)
                damages.append(f"{step}: {damage}")
        if damages:
            raise RunFault(
                f"none of the checkpoints in {self.directory} verifies ({'; '.join(damages)}), and the run will not "
                "start over by itself. Put an intact copy of one in place, or give another --workdir.")
        return None

    def _by_score(self, steps: list[int]) -> list[int]:
        """Those of `steps` that have a score, the best first, the earlier first among equals."""
        scores = {}
        for step in steps:
            try:
                scores[step] = self._checked(step, workdir.manifest)["score"]
            except workdir.Damaged:
                continue  # `_first_whole` speaks of it when it matters
        return sorted((s for s in scores if scores[s] is not None), key=lambda s: self._sign * scores[s])


# Trees by path


def _leaves(tree: Tree, part: str = "") -> dict[str, Any]:
    """{path: leaf} of any pytree, in its own order: keys, indices and field names joined by slashes, after `part`."""
    leaves = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = "/".join(filter(None, (part, jax.tree_util.keystr(keys, simple=True, separator="/"))))
        if path in leaves:
            raise ValueError(f"two entries of the state have the path {path}")
        leaves[path] = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return leaves


def _within(part: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The entries at or below the path `part`."""
    return {path: x for path, x in arrays.items() if not part or f"{path}/".startswith(f"{part}/")}


def _kind(x: Any) -> str:
    """The dtype and shape of an array, as "float32[2,3]"."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def _abstract(kind: str) -> jax.ShapeDtypeStruct:
    dtype, _, shape = kind.rstrip("]").partition("[")
    return jax.ShapeDtypeStruct(tuple(map(int, filter(None, shape.split(",")))), np.dtype(dtype))


def _misfits(saved: dict[str, str], wanted: dict[str, Any]) -> list[str]:
    """What keeps `saved` ({path: kind}) from being `wanted` ({path: leaf}), one line an entry."""
    asked = {path: _kind(x) for path, x in wanted.items()}
    missing = [f"missing in the checkpoint: {path} {kind}" for path, kind in asked.items() if path not in saved]
    extra = [f"only in the checkpoint: {path} {kind}" for path, kind in saved.items() if path not in asked]
    differing = [f"differs: {path} is {saved[path]} in the checkpoint, {kind} in this run"
                 for path, kind in asked.items() if saved.get(path, kind) != kind]
    return missing + extra + differing


def _quieten_orbax() -> None:
    """Keeps the tracebacks to itself that Orbax prints of a failed write before it raises it, and one more for every
    array still being written then: the user gets one RunFault that says it all."""
    logging.getLogger("absl").addFilter(_not_from_orbax)
    previous = sys.unraisablehook

    def hook(unraisable) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            previous(unraisable)

    if getattr(previous, "__module__", None) != __name__:
        sys.unraisablehook = hook


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or f"{os.sep}orbax{os.sep}" not in record.pathname


def _bytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.2f} MB"
