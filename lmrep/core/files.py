"""Files that are written completely or not at all, and directories with a manifest that shows any later damage."""

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lmrep.core.errors import RunFault, UserError
from lmrep.core.json_text import loads

MANIFEST = "manifest.json"


def temporary_name(name: str) -> str:
    """Returns an unpredictable hidden name for a file that will become `name`: `.NAME.HOST.8-HEX-DIGITS.PROCESS`."""
    return f".{name}.{_host()}.{uuid.uuid4().hex[:8]}.{os.getpid()}"


def remove_leftovers(path: Path) -> None:
    """Removes the temporary files and directories (see `temporary_name`) of `path` whose processes on this host have
    ended. Those of other hosts and containers stay."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_host())}\.[0-9a-f]{{8}}\.([1-9][0-9]*)")
    with contextlib.suppress(OSError):  # the parent does not exist, or cannot be read
        for entry in list(os.scandir(path.parent)):
            if (match := pattern.fullmatch(entry.name)) and not _runs(int(match[1])):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def _host() -> str:
    """Returns the name of this host and, on Linux, the number of its process namespace, which containers have."""
    name = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40]
    with contextlib.suppress(OSError):
        return f"{name}-{os.stat('/proc/self/ns/pid').st_ino}"
    return name


def _runs(process: int) -> bool:
    """Returns whether the process with this number runs on this host."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


def open_lock(path: str | os.PathLike) -> int:
    """Opens a lock file for reading and writing, without changing its content, and returns its descriptor. Creates it
    if it is missing. Does not follow a symbolic link, because several users may write to the folder. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Replaces the file at `path` atomically: a reader finds the old content or the new, even after a power failure.

    Raises:
      RunFault: it cannot be written; the old file is untouched.
    """
    path = Path(path)
    temporary = path.with_name(temporary_name(path.name))
    try:
        # Neither through a link nor into a file that somebody else has made meanwhile.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666),
                  "wb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync(path.parent)
    except OSError as error:
        raise RunFault(f"{path} cannot be written: {error.strerror}") from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` in UTF-8 by `write_bytes`."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON by `write_bytes`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def check_output(path: str | os.PathLike) -> None:
    """Raises UserError if `path`, given by `--output`, cannot be written. Call it before anything is computed."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        what = "a directory; give a file in it" if path.is_dir() else "not a regular file; give another one"
        raise UserError(f"--output is {path}, {what}")
    if not path.parent.is_dir():
        raise UserError(f"--output is {path}, and there is no directory {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"--output is {path}, and {path.parent} is not writable; give another file")


def sync(path: str | os.PathLike) -> None:
    """Waits until the file or the directory entries at `path` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file or a directory, if it exists. A symbolic link is removed, but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(target: Path, keep_existing: bool = False) -> Iterator[Path]:
    """Makes a new directory beside `target`, which is renamed to it when the block ends, or removed if the block fails.

    Args:
      target: may exist if it is empty.
      keep_existing: if another process has made `target` meanwhile, keep that one, as for a cache.

    Raises:
      OSError: it cannot be written, or `target` is not empty.
    """
    temporary = target.with_name(temporary_name(target.name))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        try:
            temporary.rename(target)
        except OSError:
            if not (keep_existing and target.is_dir()):
                raise
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class Damaged(Exception):
    """A sealed directory does not match its manifest. The message continues a sentence that names the directory."""


def seal(directory: Path, record: dict) -> None:
    """Flushes `directory` to the disk, then writes its manifest: `record` (JSON), the size and SHA-256 of every file,
    and the manifest's own SHA-256."""
    write_json(directory / MANIFEST, signed({**record, "files": file_hashes(directory)}))


def file_hashes(directory: Path) -> dict[str, list]:
    """Flushes all files of `directory` to the disk, and returns {name: [size, SHA-256]}."""
    files = {}
    for path in sorted(directory.rglob("*")):
        sync(path)
        if path.is_file():
            files[str(path.relative_to(directory))] = [path.stat().st_size, _sha256(path)]
    return files


def signed(content: dict) -> dict:
    """Adds the SHA-256 of a manifest's content to it."""
    return {**content, "sha256": digest(content)}


def verified(directory: Path, trusted: Collection[str] = (), missing: str = "") -> dict:
    """Compares every file of a sealed directory with the manifest, and returns the manifest. For the files named in
    `trusted`, only sizes are compared. Files that match the pattern `missing` may be missing.

    Raises:
      Damaged: a file is missing, truncated or changed; the message names it.
    """
    content = manifest(directory)
    for name, (size, sha256) in content["files"].items():
        try:
            actual = (directory / name).stat().st_size
            if actual != size or not (directory / name).is_file():
                raise Damaged(f"{name} has {actual} bytes instead of {size}")
            if name not in trusted and _sha256(directory / name) != sha256:
                raise Damaged(f"{name} has changed since it was saved (its SHA-256 differs)")
        except FileNotFoundError:
            if not fnmatch.fnmatchcase(name, missing):
                raise Damaged(f"{name} is missing") from None
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error
    return content


def manifest(directory: Path) -> dict:
    """Returns the manifest that `seal` wrote, checked against its own SHA-256. No other file is read.

    Raises:
      Damaged: the manifest is missing or changed.
    """
    try:
        if (directory / MANIFEST).exists() and not (directory / MANIFEST).is_file():  # a pipe, or a device without end
            raise Damaged(f"{MANIFEST} is not what was saved")
        content = (directory / MANIFEST).read_bytes()
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error.strerror})") from error
    return parse_manifest(content)


def parse_manifest(text: bytes) -> dict:
    """Returns the content of a manifest, checked against its own SHA-256. Raises Damaged if it is changed."""
    try:
        content = loads(text)
        sha256 = content.pop("sha256")
        sum(size for size, _ in content["files"].values())  # [size, SHA-256] of each
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"{MANIFEST} is not what was saved") from error
    if sha256 != digest(content):
        raise Damaged(f"{MANIFEST} has changed since it was saved (its SHA-256 differs)")
    return content


def digest(content: Any) -> str:
    """Returns the SHA-256 of `content` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
