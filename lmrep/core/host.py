"""The machine on which a process runs."""

import contextlib
import ctypes
import functools
import glob
import logging
import os
import platform
import re
import resource
import shutil
import sys
from pathlib import Path

from lmrep.core.errors import UserError
from lmrep.core.paths import as_path

MIN_ADDRESS_SPACE = 4 * 10**9  # bytes; JAX with XLA's compiler reserves 1.7 GB before any array is made
GPU_PLATFORMS = dict.fromkeys(("cuda", "rocm", "oneapi"), "gpu")  # name in $JAX_PLATFORMS -> platform of the devices
INSTALLED = "check the driver (nvidia-smi), and that JAX is installed for accelerators (jax[cuda13], jax[tpu])"
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*")

# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8

log = logging.getLogger(__name__)


def default_data_dir() -> Path:
    """Returns the default directory of token stores: $LMREP_DATA_DIR or ~/.cache/lmrep."""
    return Path(as_path(os.environ.get("LMREP_DATA_DIR") or "~/.cache/lmrep"))


def check_address_space() -> None:
    """Checks the limit of the address space (`ulimit -v`): XLA hangs or aborts without a message if it is too low.

    Raises:
      UserError: the limit is below `MIN_ADDRESS_SPACE`.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise UserError(f"this process may use {limit / 1e9:.1f} GB of address space (ulimit -v), and JAX needs at "
                        f"least {MIN_ADDRESS_SPACE / 1e9:g} GB; raise the limit: ulimit -v unlimited")


def keep_memory() -> bool:
    """Makes malloc keep freed memory in this process, if it computes on the CPU. Returns whether that succeeded.

    XLA's CPU backend allocates the temporaries of every step anew. glibc returns blocks of that size to the kernel,
    which clears each page when it is used again; this takes a quarter of a small model's step. A single arena that
    keeps freed memory avoids this, but needs up to 2.3 times the memory (BERT-mini, batch 64: at most 4.6 GB instead of
    2.0), so it is optional: LMREP_KEEP_MEMORY=1 lmrep train ... Call it before JAX starts threads, which get separate
    arenas.
    """
    if not sys.platform.startswith("linux") or any(glob.glob(pattern) for pattern in ACCELERATORS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    settings = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 64 * 2**20))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


def cores() -> int:
    """Returns the number of cores that this process may use: its CPU affinity, limited by its container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError):
        if quota := re.match(r"(\d+) (\d+)", Path("/sys/fs/cgroup/cpu.max").read_text()):
            return max(1, min(bound, int(quota[1]) // int(quota[2])))
    return bound


def processor() -> str:
    """Returns the name of the CPU's model, or its architecture if Linux gives no model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def available_memory() -> int | None:
    """Returns the bytes that this process may still allocate; None if the system does not report them."""
    limits = []
    with contextlib.suppress(OSError, AttributeError):
        limits.append(1024 * int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]))
    with contextlib.suppress(OSError, ValueError):  # the limit of a container; ValueError for "max", no limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        limits.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    if not limits:
        with contextlib.suppress(OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        limits.append(limit)
    return max(0, min(limits)) if limits else None


@functools.cache  # warns once
def check_backend() -> None:
    """Checks that JAX computes on the first platform of $JAX_PLATFORMS. If that is not set, logs a warning when JAX
    uses the CPU of a machine with accelerators.

    Without a GPU, JAX skips `cuda` without a message and computes on the next platform.

    Raises:
      UserError: JAX computes on another platform.
    """
    import jax

    platforms = jax.config.jax_platforms or ""
    wanted = platforms.partition(",")[0]
    try:
        platform = jax.default_backend()
    except (RuntimeError, AssertionError) as error:
        platform, reason = "", str(error).partition(" (set JAX_PLATFORMS")[0]
    else:
        reason = f"it would compute on the {platform}"
    if not platform or (wanted and GPU_PLATFORMS.get(wanted, wanted) != platform):
        setting = f"JAX_PLATFORMS is {platforms}, and JAX sees" if wanted else "JAX finds"
        raise UserError(f"{setting} no such device{f': {reason}' if reason else ''}; {INSTALLED}, or set "
                        "JAX_PLATFORMS=cpu")
    if accelerator := unused_accelerator():
        log.warning("this machine seems to have accelerators (%s), and JAX computes on the CPU; %s, or set "
                    "JAX_PLATFORMS=cpu to train there on purpose", accelerator, INSTALLED)


def unused_accelerator() -> str:
    """Returns the path of an accelerator's device file or of nvidia-smi, if JAX computes on the CPU without being told
    so by $JAX_PLATFORMS; otherwise ""."""
    import jax

    if jax.config.jax_platforms or jax.default_backend() != "cpu":
        return ""
    return next((path for pattern in ACCELERATORS for path in sorted(glob.glob(pattern))),
                shutil.which("nvidia-smi") or "")


def use_devices_per_core() -> None:
    """Makes each core of this machine a device of JAX's CPU backend. Small batches are computed faster in parallel, one
    per core, than one after another on all cores: BERT-mini scores 1.25 times the sentences on two cores. Call it
    before JAX computes anything; afterwards it has no effect."""
    import jax

    with contextlib.suppress(RuntimeError):  # the backend has started
        if jax.config.jax_num_cpu_devices < 1 and "device_count" not in os.environ.get("XLA_FLAGS", ""):
            jax.config.update("jax_num_cpu_devices", cores())


def peak_memory() -> dict[str, int]:
    """Returns the peak memory in bytes of this process and, if known, of the device with the highest peak."""
    import jax  # not before `keep_memory`

    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    return peak | ({"device_peak_bytes": max(peaks)} if None not in peaks else {})
