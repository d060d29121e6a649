"""Several processes as one run: which of them this one is, how they find each other, and how they fail together.

A launcher says so in the environment. `place` knows

    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID    said outright; they go before what follows
    Slurm            SLURM_*, of a step that srun started
    Open MPI         OMPI_COMM_WORLD_*; before version 5 the coordinator's address too
    Kubernetes       JOB_COMPLETION_INDEX of an indexed Job, beside the first two above

and JAX knows by itself the hosts of a TPU slice. Without any of them a process is alone, and nothing is done. JAX ends
a process that cannot join by an abort without a word to its user; so processes meet before, and say what is wrong.

JAX is imported where it is needed, so that a command line that is refused costs nothing.
"""

import contextlib
import glob
import importlib.util
import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lmrep.core.errors import RunFault, UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
TIMEOUT = "LMREP_JOIN_SECONDS"
JOIN_SECONDS = 300  # for all processes to meet
HEARTBEAT_SECONDS = 60  # after which JAX ends the others of a process that is gone
LEAVE_SECONDS = 10  # that a process which failed waits for the others to fail alike


class Place(NamedTuple):
    """This process among all of a run."""

    coordinator: str  # HOST:PORT, at which process 0 listens
    processes: int
    index: int
    local: int = 0  # its index among the processes of its host
    neighbours: int = 1  # how many these are


# What the environment says


def place(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process; None where it is alone, or where only JAX can tell (a TPU slice).

    Raises:
      UserError: half of the variables are given, or they contradict each other.
    """
    said = {"coordinator": environment.get(ADDRESS), "processes": _number(environment, COUNT),
            "index": _number(environment, INDEX)}
    said = {name: value for name, value in said.items() if value not in (None, "")}
    found = _slurm(environment) or _open_mpi(environment) or {}
    if said and not found:
        found = {"index": _number(environment, "JOB_COMPLETION_INDEX")}
    found = {name: value for name, value in {**found, **said}.items() if value is not None}
    if not found or found.get("processes") == 1:
        return None
    needed = {"coordinator": f"{ADDRESS}=HOST:PORT of process 0", "processes": f"{COUNT}=how many processes there are",
              "index": f"{INDEX}=which of them this is, from 0"}
    if missing := [text for name, text in needed.items() if name not in found]:
        raise UserError("the environment says that this is one of several processes, but not all that it takes; "
                        f"set also {', '.join(missing)}; or unset {ADDRESS}, {COUNT} and {INDEX} to train alone")
    here = Place(**found)
    if not 0 <= here.index < here.processes:
        raise UserError(f"this is process {here.index} of {here.processes}, by the environment; expected an index from "
                        f"0 to {here.processes - 1} ({INDEX}, {COUNT})")
    if not re.fullmatch(r".+:\d{1,5}", here.coordinator):
        raise UserError(f"the coordinator's address is {here.coordinator!r}; expected HOST:PORT in {ADDRESS}")
    return here


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if text and not text.isdecimal():
        raise UserError(f"{name} is {text!r}; expected a whole number")
    return int(text) if text else None


def _slurm(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Of a step of more than one task. An allocation's own shell has tasks to give, but is none of them."""
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_PROCID" not in environment:
        return None
    count = _number(environment, "SLURM_STEP_NUM_TASKS") or _number(environment, "SLURM_NTASKS") or 1
    if count == 1:
        return None
    first = re.match(r"([^,\[]+)(?:\[(\w+))?", environment["SLURM_STEP_NODELIST"])  # "a", "a,b", "n[01-03,7],b"
    tasks = [int(number) for number, times in re.findall(  # "2(x3),1" is 2, 2, 2, 1
        r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")) for _ in range(int(times or 1))]
    node = _number(environment, "SLURM_NODEID") or 0
    port = 61440 + (_number(environment, "SLURM_JOB_ID") or 0) % 4096  # two jobs on one host seldom share it
    return {"coordinator": f"{first[1]}{first[2] or ''}:{port}", "processes": count,
            "index": _number(environment, "SLURM_PROCID"), "local": _number(environment, "SLURM_LOCALID") or 0,
            "neighbours": tasks[node] if node < len(tasks) else 1}


def _open_mpi(environment: Mapping[str, str]) -> dict[str, Any] | None:
    count = _number(environment, "OMPI_COMM_WORLD_SIZE") or 1
    if count == 1:
        return None
    found = {"processes": count, "index": _number(environment, "OMPI_COMM_WORLD_RANK"),
             "local": _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK") or 0,
             "neighbours": _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") or 1}
    # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911": where mpirun runs, which is where rank 0 is.
    uri = re.match(r"(\d+)\.\d+;(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    if uri:
        found["coordinator"] = f"{uri[2] or f'[{uri[3]}]'}:{61440 + int(uri[1]) // 4096 % 4096}"
    return found


def devices(here: Place, environment: Mapping[str, str]) -> list[int] | None:
    """The GPUs of this host that this process takes, counted among those that it can see; None for all of them.

    One process of a host takes all; several share them evenly, unless the launcher has dealt them out already.
    """
    if here.neighbours == 1 or environment.get("JAX_LOCAL_DEVICE_IDS"):  # which JAX reads
        return None
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    visible = len(glob.glob("/dev/nvidia[0-9]*") if listed is None else [name for name in listed.split(",") if name])
    dealt = any(environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND"))
    if dealt or visible < here.neighbours:
        return None
    share = visible // here.neighbours
    return list(range(here.local * share, (here.local + 1) * share))


# Joining


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes of this run, if there are any; to be called before JAX touches a device.

    Raises:
      UserError: the environment contradicts itself, or the processes do not find each other in time.
    """
    here = place(environment)
    if here is None:
        if _tpu(environment):
            _start_slice()
        return
    seconds = _number(environment, TIMEOUT) or JOIN_SECONDS
    meet(here, seconds)
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        here.coordinator, here.processes, here.index, devices(here, environment), cluster_detection_method="deactivate",
        initialization_timeout=seconds, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def _tpu(environment: Mapping[str, str]) -> bool:
    """Whether this host may be one of a TPU slice, as far as can be told without asking the network."""
    platforms = environment.get("JAX_PLATFORMS", "tpu").split(",")
    return ("tpu" in platforms and bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
            and importlib.util.find_spec("libtpu") is not None)


def _start_slice() -> None:
    import jax

    with contextlib.suppress(ValueError):  # no cluster: a device that is no TPU, or a host of its own
        jax.distributed.initialize(initialization_timeout=JOIN_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def meet(here: Place, seconds: float) -> None:
    """Returns once all processes are there: each tells process 0 its index and count, and hears whether all fits.

    Raises:
      UserError: on every process that can be told, who is missing or what disagrees.
    """
    if here.index == 0:
        _receive(here, seconds)
    else:
        _report(here, seconds)


def _receive(here: Place, seconds: float) -> None:
    """What process 0 does: hears the others, and answers them all at once."""
    port = int(here.coordinator.rpartition(":")[2])
    family = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    try:
        server = socket.create_server(("", port), backlog=here.processes, **family)
    except (OSError, OverflowError) as error:
        raise UserError(f"process 0 cannot listen at port {port} of {here.coordinator}: {error}; "
                        f"end what holds it, or set {ADDRESS} to another port") from None
    there: dict[int, tuple[socket.socket, str]] = {}
    deadline, fault = time.monotonic() + seconds, ""
    with server, contextlib.ExitStack() as stack:
        while len(there) < here.processes - 1 and not fault:
            server.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                connection, _ = server.accept()
                stack.enter_context(connection).settimeout(5)
                said = json.loads(connection.makefile("rb").readline(1000))
                index, count, host = int(said["index"]), int(said["processes"]), str(said["host"])
            except TimeoutError:
                missing = [i for i in range(1, here.processes) if i not in there]
                if time.monotonic() >= deadline:
                    fault = (f"{len(missing)} of {here.processes} processes did not come within {seconds:g} s: "
                             f"{_shortened(missing)}; see their own messages, and that they run and reach port {port} "
                             f"of process 0 on {socket.gethostname()} ({TIMEOUT} sets the time)")
                continue
            except (OSError, ValueError, KeyError, TypeError):
                continue  # somebody else at the door
            if count != here.processes:
                fault = (f"process {index} on {host} was started as one of {count}, and process 0 on "
                         f"{socket.gethostname()} as one of {here.processes}; give all the same {COUNT}")
            elif index in there and not _gone(there[index][0]):
                fault = (f"two processes have the index {index}, on {there[index][1]} and on {host}; "
                         f"give each its own {INDEX}")
                _tell(connection, fault)
                break
            there[index] = connection, host
        for connection, _ in there.values():
            _tell(connection, fault)
    if fault:
        raise UserError(fault)


def _report(here: Place, seconds: float) -> None:
    """What any other process does."""
    host, _, port = here.coordinator.rpartition(":")
    hello = json.dumps({"index": here.index, "processes": here.processes, "host": socket.gethostname()}) + "\n"
    deadline, answer = time.monotonic() + seconds, b""
    while not answer:
        reason = "it closed the connection"
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection:
                connection.sendall(hello.encode())
                connection.settimeout(seconds + 5)  # process 0 may have come last, and waits as long
                answer = connection.makefile("rb").readline(10_000)
        except (OSError, OverflowError) as error:
            reason = str(error)
        if not answer and time.monotonic() >= deadline:
            raise UserError(f"process {here.index} of {here.processes} on {socket.gethostname()} could not join "
                            f"process 0 at {here.coordinator} within {seconds:g} s ({reason}); see that process 0 "
                            f"runs there, and that hosts reach each other's ports ({ADDRESS}, {TIMEOUT})")
        if not answer:
            time.sleep(0.2)
    if fault := json.loads(answer)["fault"]:
        raise UserError(fault)


def _tell(connection: socket.socket, fault: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"fault": fault}).encode() + b"\n")


def _gone(connection: socket.socket) -> bool:
    """Whether the other side, which has no more to say, has closed."""
    return bool(select.select([connection], [], [], 0)[0])


def _shortened(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")


# Together from then on


def joined() -> bool:
    """Whether this process is one of several."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def first() -> bool:
    """Whether this process speaks for all: the only one, or process 0."""
    return not joined() or sys.modules["jax"].process_index() == 0


def agreed(action: Callable[[], Any]) -> Any:
    """What `action()` gives here, once it has succeeded on every process; each calls this in the same order.

    A process that failed alone would leave the others waiting for it, until they are ended by a timeout.

    Raises:
      Exception: what `action()` raised here; where it failed on other processes only, a UserError, or a RunFault,
        that names one of them.
    """
    if not joined():
        return action()
    value = error = None
    try:
        value = action()
    except Exception as raised:
        error = raised
    faults = _gather("" if error is None else json.dumps(
        [isinstance(error, UserError), socket.gethostname(),
         str(error) if isinstance(error, UserError | RunFault) else f"{type(error).__name__}: {error}"]))
    if error is not None:
        raise error
    for index, fault in enumerate(faults):
        if fault:
            refused, host, text = json.loads(fault)
            raise (UserError if refused else RunFault)(f"process {index} on {host}: {text}")
    return value


def _gather(text: str) -> list[str]:
    """The texts of all processes; none is sent where all are empty."""
    import numpy as np
    from jax.experimental import multihost_utils

    told = text.encode()
    sizes = multihost_utils.process_allgather(np.int32(len(told)))
    if not sizes.any():
        return [""] * len(sizes)
    padded = np.frombuffer(told.ljust(int(sizes.max())), np.uint8)
    return [row.tobytes().rstrip().decode() for row in multihost_utils.process_allgather(padded)]


def leave(code: int) -> None:
    """Ends this process, one of several that failed, with that exit code.

    Where all have failed alike each gets here, and each gives its own code. One that failed alone is waited for by
    nobody: it leaves after `LEAVE_SECONDS`, and JAX, or what sees the connection break, ends the others.
    """
    import jax

    waiting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    waiting.start()
    waiting.join(LEAVE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
