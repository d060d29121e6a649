"""Locking of runs in remote stores, which have no locks. The file MARK in the store names the process that trains the
run, the time of its last sign of life, and the local copy whose uploads the store holds."""

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path

from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote import Store

MARK = "mirror.json"
EVERY, SILENT = 30.0, 600.0  # seconds between signs of life, and without one until the holder counts as gone


def mark(store: Store) -> dict:
    """The content of MARK; {} if there is none."""
    try:
        content = json.loads(store.read(MARK) or b"{}")
    except (ValueError, RecursionError):
        content = {}
    return content if isinstance(content, dict) else {}


def check_free(url: str, content: dict) -> None:
    """Raises UserError if a run holds the store, according to the content of its mark."""
    host, number, silence = content.get("host"), content.get("process"), time.time() - content.get("time", 0)
    gone = host == socket.gethostname() and not _alive(number)
    if content.get("held") and silence < SILENT and not gone:
        raise UserError(
            f"the workdir {url} is in use by process {number} on {host}, last active {max(silence, 0):.0f} s ago; wait "
            "for that run, stop it, or give another --workdir (a run that was killed on another machine counts as gone "
            f"{SILENT / 60:.0f} minutes after it was last active)")


class Claim:
    """This process's lock on a store while it trains in the local directory `directory`, from `take` to `release`.

    Attributes:
      copy: id of the local copy whose uploads the store holds from then on.
    """

    def __init__(self, store: Store, directory: Path):
        self._store, self._directory = store, str(directory)
        self._previous, self._mark, self._marked = {}, {}, 0.0

    @property
    def copy(self) -> str:
        return self._mark["copy"]

    def take(self, origin: str | None) -> None:
        """Locks the store. `origin` is the previous `copy` of the local directory; if the store has another one, or
        none, a new copy begins. Raises UserError if another process holds the store."""
        self._previous = mark(self._store)
        # A previous holder with the same local copy is gone, because we hold the lock of that directory.
        if self._previous.get("host") != socket.gethostname() or self._previous.get("directory") != self._directory:
            check_free(self._store.url, self._previous)
        known = origin and origin == self._previous.get("copy")
        self._mark = {"copy": origin if known else uuid.uuid4().hex, "held": True, "host": socket.gethostname(),
                      "process": os.getpid(), "directory": self._directory}
        self._write()

    def refresh(self, after: float = EVERY) -> None:
        """Gives a sign of life, if the last one is at least `after` seconds old. Raises RunFault if another process has
        taken the store."""
        if time.monotonic() - self._marked < after:
            return
        if (content := mark(self._store)).get("copy") != self.copy:
            raise RunFault(f"process {content.get('process')} on {content.get('host')} has taken {self._store.url}, or "
                           f"{MARK} was removed there")
        self._write()

    def release(self, used: bool) -> None:
        """Releases the store. If it was not `used`, the previous mark is restored."""
        with contextlib.suppress(Exception):  # otherwise this process counts as gone after a while
            if mark(self._store).get("copy") != self.copy:
                return
            if left := self._mark if used else self._previous:
                self._store.write(MARK, json.dumps({**left, "held": False}).encode())
            else:
                self._store.remove(MARK)

    def _write(self) -> None:
        self._store.write(MARK, json.dumps({**self._mark, "time": time.time()}).encode())
        self._marked = time.monotonic()


def _alive(process: int | None) -> bool:
    try:
        os.kill(int(process or 0), 0)
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)
    return True
