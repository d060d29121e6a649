"""Configures JAX's persistent compilation cache, in the user's cache folder unless the user has chosen another one.

JAX's bound on the size of a cache takes a lock for every program that is read or written. Separate commands need this
lock. The processes of one run would wait for each other, and only process 0 writes, so they use a folder without locks,
whose oldest programs are removed when a run starts.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import sys
from pathlib import Path

from lmrep.core.host import default_data_dir

DIRECTORY, ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
MAX_BYTES, MIN_SECONDS = "JAX_COMPILATION_CACHE_MAX_SIZE", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
LIMIT = 2 * 10**9  # bytes
ENTRY, USED = "-cache", "-atime"  # the suffixes of JAX's files: a program, and when it was last used
LOCK = ".lockfile"  # JAX's
CPU_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part", "cpu\t", "isa")  # of /proc/cpuinfo

log = logging.getLogger(__name__)


def enable(several_processes: bool = False) -> Path | None:
    """Makes JAX load and save compiled programs. Call it before anything is compiled; JAX need not be imported.

    $JAX_COMPILATION_CACHE_DIR and JAX's other variables take precedence.

    Args:
      several_processes: whether this is one of several processes of a run.

    Returns:
      The folder; None if the user has set another one, or if it is not writable or belongs to another user.
    """
    chosen = os.environ.get(DIRECTORY)
    if chosen and chosen not in (str(folder()), str(folder(several_processes=True))):  # not by a previous call
        return None
    directory = folder(several_processes)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_uid != os.getuid():  # programs are code: only this user may have written them
            return None
        (_shorten if several_processes else _repair)(directory)
    except (OSError, NotImplementedError) as error:  # read-only, or without locks
        log.debug("no compilation cache in %s: %s", directory, error)
        return None
    os.environ[DIRECTORY] = str(directory)
    os.environ.setdefault(MIN_SECONDS, "0")
    if several_processes:
        os.environ.pop(MAX_BYTES, None)
    else:
        os.environ.setdefault(MAX_BYTES, str(LIMIT))
    if "jax" in sys.modules:  # JAX has read the environment when it was imported
        import jax

        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_compilation_cache_max_size", int(os.environ.get(MAX_BYTES, "-1")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float(os.environ[MIN_SECONDS]))
    return directory


def disable() -> None:
    """Makes JAX compile without a persistent cache, even if the environment enables it."""
    os.environ[ENABLED] = "false"
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_enable_compilation_cache", False)


@functools.cache
def _machine() -> str:
    """Identifies the processor and the number of cores: compiled programs depend on both."""
    lines: set[str] = set()
    with contextlib.suppress(OSError):
        lines = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(CPU_FIELDS)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    digest = hashlib.sha256("\n".join([platform.processor(), *sorted(lines)]).encode()).hexdigest()
    return f"{platform.machine()}-{cores}-{digest[:12]}"


def folder(several_processes: bool = False) -> Path:
    """Returns the folder of programs for this processor, $LMREP_DATA_DIR/compiled/MACHINE."""
    return default_data_dir() / "compiled" / (_machine() + ("-processes" if several_processes else ""))


def _repair(directory: Path) -> None:
    """Removes programs that a killed process wrote incompletely: JAX would never write them again.

    Raises:
      OSError, NotImplementedError: the file system has no locks.
    """
    import filelock

    with contextlib.suppress(filelock.Timeout), filelock.FileLock(directory / LOCK).acquire(timeout=5):
        for entry in directory.glob(f"*{ENTRY}"):
            if not entry.with_name(entry.name.removesuffix(ENTRY) + USED).exists():
                entry.unlink(missing_ok=True)


def _shorten(directory: Path) -> None:
    """Removes the oldest programs until the folder has at most `LIMIT` bytes."""
    entries = [(status.st_mtime, status.st_size, entry) for entry in directory.glob(f"*{ENTRY}")
               for status in [entry.stat()]]
    size = sum(size for _, size, _ in entries)
    for _, entry_size, entry in sorted(entries):
        if size <= LIMIT:
            break
        entry.unlink(missing_ok=True)
        size -= entry_size
