"""A cache of computed directories with manifests: built once, verified when they are opened, rebuilt if damaged."""

import contextlib
import fnmatch
import json
import logging
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lmrep.core.errors import RunFault
from lmrep.core.files import Damaged, atomic_directory, manifest, remove_leftovers, seal, verified, write_json

ALWAYS_VERIFIED = 2**30  # bytes; smaller directories are hashed (in 1.5 seconds) whenever they are opened
SMALL_FILE = 2**20  # bytes; smaller files are hashed in any directory
ATTEMPTS = 3  # to build a directory

Value = TypeVar("Value")

log = logging.getLogger(__name__)


def cached(
    directory: Path, build: Callable[[Path], None], load: Callable[[Path], Value], record: dict[str, Any], what: str,
    advice: str = "free some space or name another directory",
) -> Value:
    """Builds a directory unless it exists, and returns `load(directory)`. A damaged directory is rebuilt, and logged.

    Args:
      directory: its name has a fingerprint of everything that determines the content.
      build: writes the files into a temporary directory, which becomes `directory` unless another process has built it
        meanwhile.
      load: reads the directory; raises Damaged if a file is invalid.
      record: JSON, for the manifest.
      what: the content, for messages, such as "the plan".
      advice: what to do if it cannot be written, for messages.

    Raises:
      RunFault: the directory cannot be written, or is damaged after `ATTEMPTS` builds.
    """
    for _ in range(ATTEMPTS):  # another process may find the same damage, and remove what this one has written
        try:
            if not directory.exists():
                remove_leftovers(directory)
                with atomic_directory(directory, keep_existing=True) as temporary:
                    build(temporary)
                    seal(temporary, record)
            if damage := find_damage(directory):
                raise Damaged(damage)
            if any(manifest(directory).get(key) != value for key, value in record.items()):
                raise Damaged("its manifest has another fingerprint")
            return load(directory)
        except Damaged as damage:
            log.warning("%s is damaged and will be built again: %s", directory, damage)
        except OSError as error:
            raise RunFault(f"cannot write {what} {directory}: {error}; {advice}") from error
        remove(directory, what)
    raise RunFault(f"{directory} was damaged {ATTEMPTS} times; check the disk, or name another directory")


def find_damage(directory: Path, missing: str = "") -> str:
    """Describes how a sealed directory differs from its manifest; returns "" if it is intact. Files that match the
    pattern `missing` may be missing.

    In a directory of more than ALWAYS_VERIFIED bytes, a file of more than SMALL_FILE bytes is hashed once per machine,
    and again when its size, time or inode change. A file beside the directory records them.
    """
    record = directory.with_name(f".{directory.name}.verified-{platform.node()}")
    try:
        files = {name: file for name, file in manifest(directory)["files"].items()
                 if not fnmatch.fnmatchcase(name, missing)}
        if sum(size for size, _ in files.values()) <= ALWAYS_VERIFIED:
            verified(directory, missing=missing)
            return ""
        states = {name: [s.st_size, s.st_mtime_ns, s.st_ino] for name in files for s in [(directory / name).stat()]}
        known: Any = {}  # [size, time, inode] of the files that this machine has verified
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(record.read_bytes())
        known = known if isinstance(known, dict) else {}
        trusted = {name for name in states if known.get(name) == states[name] and states[name][0] > SMALL_FILE}
        verified(directory, trusted, missing)
        if known != states:
            with contextlib.suppress(RunFault):  # the data directory may be read-only
                write_json(record, states)
    except (Damaged, OSError) as error:
        return str(error)
    return ""


def remove(directory: Path, what: str) -> None:
    """Renames a directory, so that no other process opens a part of it, and removes it."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=directory.parent, ignore_cleanup_errors=True) as temporary:
            directory.rename(Path(temporary) / "damaged")
    except FileNotFoundError:
        pass  # another process was faster
    except OSError as error:
        raise RunFault(f"cannot remove {what} {directory}, which is damaged: {error}; delete it by hand") from error
