"""Child processes that start within tenths of a second: forked from a server that has imported what is slow to import,
before it started any thread."""

import atexit
import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from tests.small import SECONDS

LIFETIME = 5 * SECONDS  # the system then ends a child, whose test may have failed without ending it

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload([
    "jax", "flax", "orbax.checkpoint", "pytest", "rich.live", "lmrep.api", "lmrep.analysis.report", "lmrep.cli.train",
    "lmrep.distributed.watchdog", "lmrep.storage.remote_workdir", "lmrep.training.loop", "tests.small"])


class Child:
    """Runs `function(*arguments)` in a process and session of its own, on `devices` devices.

    `tests.small.until` and `tests.small.finish` take it as they take a `subprocess.Popen`.
    """

    def __init__(self, function, *arguments, devices: int = 1, environment: dict[str, str] | None = None):
        self._output = tempfile.TemporaryDirectory()
        self._process = context.Process(target=_run, args=(
            function, arguments, self._output.name, devices, environment or {}))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """Waits for its end, and returns what it wrote to standard output and standard error."""
        self._process.join(timeout)
        if late := self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)  # it writes the stacks of its threads
            self._process.join(1)
            self.kill()
        out, err = ((Path(self._output.name) / name).read_text() for name in ("1", "2"))
        assert not late, f"it took more than {timeout:g} seconds:\n{err}"
        return out, err


def lmrep(*words) -> None:
    """Runs `lmrep WORDS` as a program does."""
    from lmrep.cli.main import main

    sys.argv[1:] = map(str, words)
    sys.exit(main())


def addresses(count: int) -> list[dict[str, str]]:
    """The environments in which `count` processes of this machine join each other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [{"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(index)}
            for index in range(count)]


def reached(workdir: Path, step: int) -> bool:
    """Whether a run has logged this step or a later one."""
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return bool(lines) and json.loads(lines[-1])["step"] >= step


def _run(function, arguments: tuple, output: str, devices: int, environment: dict[str, str]) -> None:
    os.setsid()
    signal.alarm(LIFETIME)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (1, 2):
        os.dup2(os.open(f"{output}/{descriptor}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.stdout, sys.stderr = (open(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))  # noqa: SIM115
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    os.environ.update(environment, XLA_FLAGS=flags)
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing does not call them
