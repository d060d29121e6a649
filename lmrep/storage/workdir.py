"""One run, one directory: a lock that dies with its holder, files that are whole or absent, sealed directories."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError

LOCK = ".lock"
MANIFEST = "manifest.json"

_held: set[int] = set()  # descriptors of the locks that this process holds


def _let_go_in_child() -> None:
    # A forked child shares the parent's open file, and with it the lock, which would then outlive a killed parent.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextlib.contextmanager
def lock(workdir: str | os.PathLike) -> Iterator[None]:
    """Holds `workdir`, made if it is not there, for this process alone.

    The kernel releases the lock when the process ends, however it ends; its children never hold it. In a run of several
    processes one of them takes it.

    Raises:
      UserError: another run holds it (names its process, host and start), or it cannot be made or locked.
    """
    path = Path(workdir) / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"the workdir {workdir} cannot be used: {error.strerror}; give another --workdir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 4096).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise UserError(
            f"the workdir {workdir} is in use by {holder}; wait for that run, stop it, or give another --workdir"
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise UserError(f"{path} cannot be locked: {error.strerror}; use a file system that supports locks") from error
    _held.add(descriptor)
    try:
        started = time.strftime("%Y-%m-%d %H:%M:%S %z")
        with contextlib.suppress(OSError):  # a courtesy to the next who asks, which a full disk may refuse
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, started {started}\n".encode(), 0)
        yield
    finally:
        # After a fork the child's copy is closed already, and the number may belong to another file.
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replaces the file at `path` in one step: whoever reads it, even after a power cut, finds the old or the new text.

    Raises:
      RunFault: it cannot be written; the old file is untouched.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(draft, "w", encoding="utf8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync(path.parent)
    except OSError as error:
        raise RunFault(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: str | os.PathLike, value: Any) -> None:
    """`write_text` of `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sync(path: str | os.PathLike) -> None:
    """Waits until the file or the directory entries at `path` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_free(target: Path) -> None:
    """Raises UserError where `target` holds something, or cannot be made."""
    if url := remote.address(target):
        raise UserError(f"{url} is in a remote store; give a directory of this machine, and copy it there")
    if target.resolve() == Path.cwd():
        raise UserError(f"{target} is the directory that you are in; give one that is not")
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} is there already; give a directory that is not, or an empty one")
    place = next(path for path in target.absolute().parents if path.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise UserError(f"{target} cannot be made: {place} is no directory that may be written to")


@contextlib.contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A directory that becomes `target` when the block ends, and is gone where it fails. What a killed process left is
    removed.

    Raises:
      UserError: at once, as `check_free`.
      RunFault: it cannot be written.
    """
    check_free(target)
    target = target.resolve()
    for left in target.parent.glob(f".{target.name}.*"):
        number = left.name.rpartition(".")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(left, ignore_errors=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.rename(target)  # which may be there, but not if it holds something
        sync(target.parent)
    except OSError as error:
        raise RunFault(f"{target} cannot be written: {error.strerror or error}; nothing is there") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class Damaged(Exception):
    """Why a directory is not what was sealed; the message goes on from the directory's name."""


def seal(directory: Path, record: dict) -> None:
    """Waits until all of `directory` is on the disk, then writes its manifest: `record` (JSON), the size and SHA-256 of
    every file, and the manifest's own SHA-256."""
    files = {}
    for path in sorted(directory.rglob("*")):
        sync(path)
        if path.is_file():
            files[str(path.relative_to(directory))] = [path.stat().st_size, _sha256(path)]
    content = {**record, "files": files}
    write_json(directory / MANIFEST, {**content, "sha256": _digest(content)})


def verified(directory: Path) -> dict:
    """The `manifest` of a sealed directory, after every file was read and compared with it.

    Raises:
      Damaged: says which file is missing, cut or changed.
    """
    content = manifest(directory)
    for name, (size, sha256) in content["files"].items():
        try:
            found = (directory / name).stat().st_size
            if found != size:
                raise Damaged(f"{name} has {found} bytes instead of {size}")
            if _sha256(directory / name) != sha256:
                raise Damaged(f"{name} has changed since it was saved (its SHA-256 differs)")
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
    return content


def manifest(directory: Path) -> dict:
    """What `seal` recorded, compared with its own SHA-256; the other files are not looked at.

    Raises:
      Damaged: the manifest is missing or changed.
    """
    try:
        content = json.loads((directory / MANIFEST).read_bytes())
        digest = content.pop("sha256")
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error.strerror})") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"{MANIFEST} is not what was saved") from error
    if digest != _digest(content):
        raise Damaged(f"{MANIFEST} has changed since it was saved (its SHA-256 differs)")
    return content


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONFIG = "config.json"


def read_config(directory: str | os.PathLike) -> dict:
    """A workdir's config.json: {"config": ..., "data": fingerprints}.

    Raises:
      UserError: it is not there.
      RunFault: it is damaged.
    """
    path = Path(directory) / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf8"))
        if not (isinstance(found, dict) and all(isinstance(found.get(key), dict) for key in ("config", "data"))
                and "tokenizer" in found["data"]):
            raise ValueError("expected the config and the data of a run")
        return found
    except FileNotFoundError:
        if url := remote.address(directory):
            raise UserError(f"{url} is in a remote store, where this command does not look; copy the run to a "
                            "directory of this machine") from None
        raise UserError(f"there is no run in {directory}: {CONFIG} is missing; give the --workdir of a run") from None
    except (ValueError, RecursionError) as error:
        raise RunFault(f"{path} is damaged: {error}; restore it, or start anew in another --workdir") from None
