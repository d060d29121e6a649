"""Runs a command in a separate process, so that its failure, its memory and its compiled programs end with it."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from lmrep.analysis.sweep import Ending
from lmrep.core.errors import UserError

COMMAND = (sys.executable, "-m", "lmrep")
INTERRUPTED, TERMINATED = 130, 143  # exit codes after Ctrl-C and SIGTERM
POLL_SECONDS = 0.5
TAIL = 4096  # bytes read from the end of a log


@contextlib.contextmanager
def claimed(log: Path) -> Iterator[BinaryIO | None]:
    """Opens and locks the log file of a run for appending. The context gives the file; None if it is locked already.

    The training process inherits the lock, so that a run is claimed until both have ended.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = open(log, "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"{log} cannot be written: {error.strerror}; give another --workdir") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def run(words: Sequence[str], log: BinaryIO, show: Callable[[str], None]) -> tuple[Ending, int]:
    """Runs a command of lmrep and waits for it.

    Ctrl-C and SIGTERM are passed on as SIGTERM, on which a training saves and stops; a second Ctrl-C kills it.

    Args:
      words: the name of the command and its flags.
      log: the file that its output is appended to.
      show: called with the last line of the output while it runs.

    Returns:
      How the process ended, and the exit code with which the caller must stop too; 0: it goes on.
    """
    begin, start = log.tell(), time.monotonic()
    # In a new session: a Ctrl-C in the terminal reaches only the parent.
    process = subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        stop = _wait(process, lambda: show((_tail(Path(log.name), begin) or [""])[-1]), show)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    code = process.returncode
    ending = Ending(code, round(time.monotonic() - start, 1), _message(code, Path(log.name), begin) if code else "")
    return ending, stop or (code if code in (INTERRUPTED, TERMINATED) else 0)


def _wait(process: subprocess.Popen, progress: Callable[[], None], show: Callable[[str], None]) -> int:
    """Waits for a process. Returns the exit code of the signal that arrived meanwhile, or 0."""
    stop = 0
    while process.returncode is None:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
            if process.returncode is None and not stop:
                progress()
        except KeyboardInterrupt:
            if stop:
                process.kill()
            else:
                process.terminate()
                show("saving and stopping; press Ctrl-C again to stop at once without saving")
            stop = stop or INTERRUPTED
        except SystemExit:
            process.terminate()
            stop = stop or TERMINATED
    return stop


def _message(code: int, log: Path, begin: int) -> str:
    """Describes in a line why a process failed."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", which the system sends if memory is short" if name == "SIGKILL" else "")
    lines = _tail(log, begin)
    errors = [line.partition("lmrep: error: ")[2] for line in lines if "lmrep: error: " in line]
    return (errors or lines or [f"exit code {code}"])[-1]


def _tail(log: Path, begin: int) -> list[str]:
    """Returns the last lines of a file that begin after an offset."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - TAIL))
        return [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
