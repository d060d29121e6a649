"""Joins several processes into one run, and lets them agree and fail together.

`jax.distributed.initialize` detects Slurm, Open MPI before version 5, Kubernetes (with the `kubernetes` package) and
TPU slices. This module reads the ranks of torchrun and of other MPI launchers (PMI: MPICH, Intel MPI, Cray).
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID take precedence. A process without any of these trains
alone. A process that seems to be one of several without knowing its rank raises UserError.

JAX aborts a process that cannot join. `start` turns that into one message and exit code 2.

JAX is imported inside functions, so that an invalid command line fails without importing it.
"""

import contextlib
import ctypes
import functools
import glob
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lmrep.core.errors import RunFault, UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
TIMEOUT = "LMREP_JOIN_SECONDS"
JOIN_SECONDS = 300  # for all processes to join
MARGIN = 5  # seconds more, in which JAX's coordinator says which are missing
HEARTBEAT_SECONDS = 60  # JAX ends the other processes this long after one disappears
LEAVE_SECONDS = 10  # a process that failed waits this long for the others to fail too


class Process(NamedTuple):
    """This process among the processes of a run."""

    count: int  # number of processes
    index: int  # index of this process, from 0
    local_count: int = 1  # number of processes on this host
    local_index: int = 0  # index of this process among those on its host
    address: str = ""  # HOST:PORT of the coordinator; "" if JAX detects it


class Launcher(NamedTuple):
    """The environment variables that give a process its rank under a launcher: of each tuple, the first that is set."""

    count: tuple[str, ...]
    index: tuple[str, ...]
    local_count: tuple[str, ...]
    local_index: tuple[str, ...]


SLURM = Launcher(("SLURM_STEP_NUM_TASKS",), ("SLURM_PROCID",), (), ("SLURM_LOCALID",))
OPEN_MPI = Launcher(("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",),
                    ("OMPI_COMM_WORLD_LOCAL_RANK",))
PMI = Launcher(("PMI_SIZE",), ("PMI_RANK",), ("MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
               ("MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"))
TORCHRUN = Launcher(("WORLD_SIZE",), ("RANK",), ("LOCAL_WORLD_SIZE",), ("LOCAL_RANK",))
MVAPICH = Launcher(("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_SIZE",),
                   ("MV2_COMM_WORLD_LOCAL_RANK",))
# A launcher may start another one on each of its hosts (srun torchrun); the inner ranks apply. Innermost last.
LAUNCHERS = (SLURM, OPEN_MPI, MVAPICH, PMI, TORCHRUN)


def launched(environment: Mapping[str, str]) -> Process | None:
    """Reads the ranks of this process from JAX's variables or its launcher's; returns None for a single process, and if
    JAX may detect the others.

    JAX_NUM_PROCESSES=1 makes a process train alone under any launcher.

    Raises:
      UserError: the variables are incomplete or contradict each other.
    """
    _check_address(environment.get(ADDRESS))
    present = [name for name in (ADDRESS, COUNT, INDEX) if environment.get(name)]
    if COUNT in present and _number(environment, COUNT) == 1 and not _number(environment, INDEX):
        return None
    process = _ranked(environment)
    if present and process is None and len(present) < 3:
        missing = [name for name in (ADDRESS, COUNT, INDEX) if name not in present]
        raise UserError(f"{' and '.join(present)} is set without {' and '.join(missing)}; set all three ({ADDRESS}="
                        "HOST:PORT of process 0), or none to train alone")
    process = process or Process(1, 0)
    process = process._replace(count=_number(environment, COUNT, process.count),
                               index=_number(environment, INDEX, process.index),
                               address=environment.get(ADDRESS) or process.address)
    if process.index >= process.count:
        raise UserError(f"this is process {process.index} of {process.count}; expected an index from 0 to "
                        f"{process.count - 1} ({INDEX}, {COUNT})")
    return process if process.count > 1 else None


def _ranked(environment: Mapping[str, str]) -> Process | None:
    """Reads the ranks of this process from its launcher's variables; None without a launcher of several processes.

    Raises:
      UserError: a variable gives several processes, and no variable the index of this one.
    """
    ranks = {launcher: rank for launcher in LAUNCHERS if (rank := _rank(launcher, environment))}
    if not ranks:
        explicit = environment.get(COUNT) and environment.get(INDEX)
        sizes = [name for launcher in LAUNCHERS for name in launcher.count if environment.get(name)]
        several = [name for name in sizes if _number(environment, name) > 1]
        if not explicit and (several or ("PMIX_RANK" in environment and not sizes)):
            name = several[0] if several else "PMIX_RANK"
            raise UserError(f"{name} is {environment[name]}, so that this seems to be one of several processes, but "
                            "the environment does not say which of how many. Set JAX_COORDINATOR_ADDRESS=HOST:PORT of "
                            f"process 0, {COUNT} and {INDEX}, or {COUNT}=1 to train alone")
        return None
    innermost = [*ranks.values()][-1]
    # Several launchers may give the same rank, as under srun --mpi=pmi2: JAX finds the coordinator of the outer ones.
    launcher, rank = next((launcher, rank) for launcher, rank in ranks.items() if rank == innermost)
    local_count = _first(launcher.local_count, environment, 1)
    if launcher is SLURM:
        local_count = -(-rank[0] // max(_number(environment, "SLURM_STEP_NUM_NODES", 1), 1))
    address = _torchrun_address(environment) if launcher is TORCHRUN else ""
    return Process(*rank, local_count, _first(launcher.local_index, environment, 0), address)


def _rank(launcher: Launcher, environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns (number of processes, index of this one) from a launcher's variables; None if it has not started several.
    """
    count = _first(launcher.count, environment, 1)
    if count < 2 or not any(environment.get(name) for name in launcher.index):
        return None
    return count, _first(launcher.index, environment, 0)


def _torchrun_address(environment: Mapping[str, str]) -> str:
    """Returns the coordinator's address from torchrun's variables."""
    host, port = environment.get("MASTER_ADDR"), _number(environment, "MASTER_PORT")
    if environment.get(ADDRESS):
        return environment[ADDRESS]
    if not host or not port:
        raise UserError(f"RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT; set {ADDRESS}=HOST:PORT of "
                        f"process 0, or {COUNT}=1 to train alone")
    if "TORCHELASTIC_RUN_ID" in environment:  # torchrun itself listens at MASTER_PORT
        port += 1 if port < 2**16 - 1 else -1
    address = f"{host}:{port}"
    _check_address(address)
    return address


def _check_address(address: str | None) -> None:
    if address and not (re.fullmatch(r".+:\d{1,5}", address) and 0 < int(address.rpartition(":")[2]) < 2**16):
        raise UserError(f"the coordinator's address is {address!r}; expected HOST:PORT in {ADDRESS}, with a port from "
                        "1 to 65535")


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name, "")
    if text and not text.isdecimal():
        raise UserError(f"{name} is {text!r}; expected a whole number")
    return int(text) if text else default


def _first(names: tuple[str, ...], environment: Mapping[str, str], default: int) -> int:
    """Returns the number in the first of these variables that is set."""
    return next((_number(environment, name) for name in names if environment.get(name)), default)


def local_devices(process: Process, environment: Mapping[str, str]) -> list[int]:
    """Returns the indices of the GPUs that this process uses, among those that it can see; [] for all of them.

    Processes on one host divide its GPUs evenly, unless the launcher has assigned them already.
    """
    if listed := environment.get("JAX_LOCAL_DEVICE_IDS"):
        return [int(index) for index in listed.split(",")]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    visible = len(glob.glob("/dev/nvidia[0-9]*") if visible is None else [name for name in visible.split(",") if name])
    assigned = any(environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND"))
    if process.local_count == 1 or assigned or visible < process.local_count:
        return []
    size = visible // process.local_count
    return list(range(process.local_index * size, (process.local_index + 1) * size))


def start() -> None:
    """Joins the other processes of this run, if there are any. Call it before JAX uses a device.

    Raises:
      UserError: the environment is incomplete or contradicts itself, or JAX finds no coordinator. If the processes do
        not join in time, this process prints a message and exits with code 2.
    """
    process = launched(os.environ)
    if process is None and not _jax_may_detect(os.environ):
        return
    seconds = os.environ.get(TIMEOUT) or str(JOIN_SECONDS)
    if not seconds.isdecimal():
        raise UserError(f"{TIMEOUT} is {seconds!r}; expected a whole number of seconds")
    import jax

    with contextlib.suppress(ImportError, AttributeError):  # private; else the message does not say who is missing
        from jax._src.lib import _jax

        _jax.get_distributed_runtime_service = functools.partial(
            _jax.get_distributed_runtime_service, cluster_register_timeout=int(seconds))
    # JAX's own timeout comes later: it would abort with a stack trace.
    options = {"initialization_timeout": 2 * int(seconds) + 60, "heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if process:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        options |= {"num_processes": process.count, "process_id": process.index,
                    "coordinator_address": process.address or None,
                    "local_device_ids": local_devices(process, os.environ)}
    if process and process.index == 0 and process.address and not os.environ.get(BIND_ADDRESS):
        port, ipv6 = int(process.address.rpartition(":")[2]), socket.has_dualstack_ipv6()
        try:  # where it cannot be opened, JAX may crash
            socket.create_server(("", port), family=socket.AF_INET6 if ipv6 else socket.AF_INET,
                                 dualstack_ipv6=ipv6).close()
        except OSError as error:
            raise UserError(f"{_description(process)} could not start: port {port} cannot be opened "
                            f"({os.strerror(error.errno)}); set {ADDRESS} to another one") from None
    with _reported(process, int(seconds)):
        try:
            jax.distributed.initialize(**options)
        except ValueError as error:  # no cluster detected
            if process:
                raise UserError(f"{_description(process)} found no coordinator: {error} Set {ADDRESS} to HOST:PORT of "
                                "process 0") from None
        except RuntimeError as error:
            raise UserError(f"{_description(process)} could not start: {error}; if its port is in use, set {ADDRESS} "
                            "to another one") from None


def _jax_may_detect(environment: Mapping[str, str]) -> bool:
    """Returns whether this may be a host of a TPU slice or a pod of an indexed Job, without network requests; False if
    JAX_NUM_PROCESSES=1."""
    if _number(environment, COUNT) == 1:
        return False
    tpu = (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")) and importlib.util.find_spec("libtpu")
    platforms = environment.get("JAX_PLATFORMS", "tpu").split(",")
    pod = "JOB_COMPLETION_INDEX" in environment and importlib.util.find_spec("kubernetes")
    return bool(("tpu" in platforms and tpu) or pod)


def _description(process: Process | None) -> str:
    name = f"process {process.index} of {process.count}" if process else "this process"
    address = process.address if process else os.environ.get(ADDRESS)
    return f"{name} on {socket.gethostname()}" + (f" (coordinator {address})" if address else "")


@contextlib.contextmanager
def _reported(process: Process | None, seconds: int) -> Iterator[None]:
    """Ends this process with one message and exit code 2 if the block takes too long or JAX aborts in it. After
    `seconds`, JAX's coordinator aborts all processes, and standard error has the number of missing ones and the indices
    of two.
    """
    joined, stderr, output = threading.Event(), os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 - closed below

    def restore() -> str:
        """Ends the redirection of standard error, and returns what was written."""
        os.dup2(stderr, 2)
        output.seek(0)
        return output.read().decode(errors="replace")

    def fail(reason: str) -> None:
        text = restore()
        if found := re.search(r"reached the barrier: (\d+)/(\d+).*?task names:\n((\d+\n)+)", text, re.DOTALL):
            names, missing = sorted(map(int, found[3].split())), int(found[2]) - int(found[1])
            reason = (f"{missing} of {found[2]} did not arrive within {seconds} s ({TIMEOUT}): process "
                      f"{', '.join(map(str, names))}{' and others' * (missing > len(names))}. Start all, or fewer with "
                      f"that {COUNT}: a run continues on any number of hosts")
        else:
            os.write(2, text.encode())
        print(f"lmrep: error: {_description(process)} could not join the others: {reason}. Check that all processes "
              f"run, with the same {ADDRESS} and {COUNT} and each with its own {INDEX}, and that hosts reach each "
              "other's ports", file=sys.stderr, flush=True)
        os._exit(UserError.exit_code)

    def watch() -> None:
        joined.wait(seconds + MARGIN)
        reason = f"not all were there within {seconds} s ({TIMEOUT})"
        if process and process.index and process.address and not joined.is_set():
            host, _, port = process.address.rpartition(":")
            try:  # process 0 may have started later than this one
                socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
                joined.wait(seconds)
            except OSError as error:
                reason = f"process 0 did not answer within {seconds} s ({TIMEOUT}): {error}"
        if not joined.is_set():
            fail(reason)

    sys.stderr.flush()
    os.dup2(output.fileno(), 2)
    threading.Thread(target=watch, daemon=True).start()
    on_abort(lambda: fail("JAX's message above says why"))
    try:
        yield
    finally:
        joined.set()
        on_abort(None)
        os.write(2, restore().encode())
        os.close(stderr)
        output.close()


_abort_handlers: list = []  # C may still call them


def on_abort(handler: Callable[[], None] | None) -> None:
    """Makes an abort of this process in C code (SIGABRT) call `handler`; None restores the default.

    Python's `signal` would call it in the main thread, which may never return from C.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    if handler is not None:
        _abort_handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: handler()))
    libc.signal(signal.SIGABRT, ctypes.cast(_abort_handlers[-1], ctypes.c_void_p) if handler is not None else None)


# After joining


def joined() -> bool:
    """Returns whether this process has joined a run of several processes."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def first() -> bool:
    """Returns whether this is the only process, or process 0."""
    return not joined() or sys.modules["jax"].process_index() == 0


def agreed(action: Callable[[], Any]) -> Any:
    """Returns the result of `action()` when it has succeeded on every process. Raises as `agreement`."""
    with agreement():
        return action()


@contextlib.contextmanager
def agreement() -> Iterator[None]:
    """Waits at the end of the block until it has ended on every process, and raises if it failed on any. All processes
    enter it in the same order. Otherwise they would wait for a failed process until a timeout.

    Raises:
      Exception: the block raised it on this process.
      UserError, RunFault: the block failed on another process, which the message names.
    """
    if not joined():
        yield
        return
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    failures = gather_texts("" if error is None else json.dumps(
        [isinstance(error, UserError), socket.gethostname(),
         str(error) if isinstance(error, UserError | RunFault) else f"{type(error).__name__}: {error}"]))
    if error is not None:
        raise error
    for index, failure in enumerate(failures):
        if failure:
            refused, host, text = json.loads(failure)
            raise (UserError if refused else RunFault)(f"process {index} on {host}: {text}")


def gather_texts(text: str) -> list[str]:
    """Gathers the texts of all processes, in order of their indices. If all are empty, only their lengths are sent."""
    import numpy as np
    from jax.experimental import multihost_utils

    encoded = text.encode()
    sizes = multihost_utils.process_allgather(np.int32(len(encoded)))
    if not sizes.any():
        return [""] * len(sizes)
    padded = np.frombuffer(encoded.ljust(int(sizes.max())), np.uint8)
    return [row.tobytes().rstrip().decode() for row in multihost_utils.process_allgather(padded)]


def leave(code: int) -> None:
    """Ends this process of a run of several with exit code `code`, after a failure.

    If all processes fail alike, each calls it and returns its exit code. A process that failed alone leaves after
    `LEAVE_SECONDS`; JAX or a broken connection ends the others.
    """
    import jax

    waiting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    waiting.start()
    waiting.join(LEAVE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
