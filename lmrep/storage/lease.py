"""A lease on a run in a remote store, which has no locks: one run at a time writes there.

The file `lease.json` in the store names the process that trains the run (process 0, of several) and the time of its
last sign of life. Every process of a run reads it before it writes to the store.
"""

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path

from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote import Store

LEASE = "lease.json"
EVERY, SILENT = 30.0, 600.0  # seconds between signs of life, and without one until the holder counts as gone
SETTLE = 1.0  # seconds after which a lease is read again: of two that were taken at once, the later one counts

_held: set[str] = set()  # the leases of this process


def read(store: Store) -> dict:
    """The content of LEASE; {} if there is none."""
    try:
        content = json.loads(store.read(LEASE) or b"{}")
    except (ValueError, RecursionError):
        content = {}
    return content if isinstance(content, dict) else {}


def check_free(url: str, content: dict) -> None:
    """Raises UserError if a run holds the store, according to the content of its lease."""
    host, number, silence = content.get("host"), content.get("process"), time.time() - content.get("time", 0)
    if content and silence < SILENT and not _gone(content):
        raise UserError(
            f"the workdir {url} is in use by process {number} on {host}, last active {max(silence, 0):.0f} s ago; wait "
            "for that run, stop it, or give another --workdir (a run that was killed on another machine counts as gone "
            f"{SILENT / 60:.0f} minutes after it was last active)")


class Lease:
    """The lease of a run on its store, at `url`.

    Args:
      store: of the run.
      identity: of a lease that process 0 has taken, for the other processes of its run; None: `take` makes one.
    """

    def __init__(self, store: Store, identity: str | None = None):
        self.url, self._store, self._taker = store.url, store, identity is None
        self.identity = identity or uuid.uuid4().hex
        self._checked = 0.0

    def take(self) -> str:
        """Takes the lease and returns its identity. Raises UserError if another run holds it."""
        check_free(self._store.url, read(self._store))
        self._write()
        _held.add(self.identity)
        time.sleep(SETTLE)
        if (content := read(self._store)).get("id") != self.identity:
            _held.discard(self.identity)
            check_free(self._store.url, content)
            raise UserError(f"the workdir {self._store.url} was taken by another run at the same time; try again")
        return self.identity

    def check(self, after: float = EVERY) -> None:
        """Checks that the run still holds the lease, and gives a sign of life, if the last check was at least `after`
        seconds ago. Raises RunFault if another run has taken it."""
        if time.monotonic() - self._checked < after:
            return
        if (content := read(self._store)).get("id") != self.identity:
            raise RunFault(f"process {content.get('process')} on {content.get('host')} has taken {self._store.url}"
                           if content else f"{LEASE} was removed from {self._store.url}")
        if self._taker:
            self._write()
        self._checked = time.monotonic()

    def release(self) -> None:
        """Gives the lease back."""
        _held.discard(self.identity)
        with contextlib.suppress(Exception):  # otherwise this process counts as gone after a while
            if read(self._store).get("id") == self.identity:
                self._store.remove(LEASE)

    def _write(self) -> None:
        content = {"id": self.identity, "host": socket.gethostname(), "process": os.getpid(),
                   "started": _started(os.getpid()), "time": time.time()}
        self._store.write(LEASE, json.dumps(content).encode())
        self._checked = time.monotonic()


def _gone(content: dict) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    if content.get("host") != socket.gethostname():
        return False
    if content.get("process") == os.getpid():
        return content.get("id") not in _held
    started = _started(content.get("process"))
    return started is None or started != content.get("started")


def _started(process: int | None) -> str | None:
    """When a process of this machine started, in clock ticks since boot; None if there is none."""
    try:  # a number alone may belong to another process by now
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
