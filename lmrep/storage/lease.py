"""A lease on a run in a remote store, which has no locks: one run at a time writes there.

The file `lease.json` in the store names the process that trains the run (process 0, of several). That process rewrites
it regularly, so that its content changes as long as the process runs. Every process of a run reads it before it writes
to the store.

A run does not start while the holder of the lease runs: as a process of this machine, or because the content changes.
The holder has ended if it was a process of this machine and has exited, or if the content has not changed for `SILENT`
seconds while this run waited. The clocks of two machines are never compared.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import TypedDict

from lmrep.config import json_files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote import Store

LEASE = "lease.json"
EVERY, SILENT = 30.0, 600.0  # seconds between two changes, and without a change until the holder counts as ended
POLL = 5.0  # seconds between two reads of another run's lease
SETTLE = 1.0  # seconds until a lease is read again: of two runs that took it at once, only one finds its identity

log = logging.getLogger(__name__)

_held: set[str] = set()  # the leases of this process


class Holder(TypedDict):
    """The required field of LEASE."""

    id: str


class LeaseLost(RunFault):
    """This run may no longer write to its store."""


def read(store: Store) -> dict:
    """Reads LEASE; returns {} if it does not exist. Raises UserError if its content is not a lease."""
    for pause in (SETTLE, 0.0):  # some stores show a file while it is written
        content = store.read(LEASE)
        if content is None:
            return {}
        with contextlib.suppress(UserError):
            return json_files.parse(Holder, content)
        time.sleep(pause)
    raise UserError(f"{store.url}/{LEASE} is not a lease of lmrep; if no run uses this workdir, delete that file")


def alive(content: dict) -> bool | None:
    """Returns whether the holder of a lease runs; None if it is not a process of this machine."""
    process, machine = content.get("process"), _machine()
    if machine is None or content.get("machine") != machine or not isinstance(process, int):
        return None
    started = _started(process)  # a number alone may belong to another process by now
    if started is None or started != content.get("started"):
        return False
    return process != os.getpid() or content["id"] in _held


def holder(content: dict) -> str:
    """Names the process that holds a lease, for messages."""
    return f"process {content.get('process')} on {content.get('host')}"


def in_use(url: str, content: dict) -> UserError:
    """Makes the error for a workdir that another run uses."""
    return UserError(f"the workdir {url} is in use by {holder(content)}; wait for that run, stop it, or give another "
                     "--workdir")


class Lease:
    """The lease of a run on its store. Threads may share it.

    Args:
      store: the store of the run.
      identity: the identity of the lease that process 0 has taken, for the other processes of the run; None for
        process 0.

    Attributes:
      url: the address of the store.
      identity: the identity of this lease.
      lost: why this run may no longer write to its store; "" if it may, as of the last check.
    """

    def __init__(self, store: Store, identity: str | None = None):
        self.url, self._store, self._taker = store.url, store, identity is None
        self.identity = identity or uuid.uuid4().hex
        self.lost = ""
        self._checked, self._lock = 0.0, threading.Lock()
        self._other: tuple[dict, float] = {}, 0.0  # the lease of another run, and when this run first read it

    def take(self) -> str | None:
        """Takes the lease and returns its identity. Returns None if it is not known yet whether the holder runs; call
        it again then. Call `release` in the end, also after an error.

        Raises:
          UserError: another run holds the lease.
        """
        content = read(self._store)
        if content and not self._gone(content):
            time.sleep(POLL)
            return None
        if content:
            log.info("%s, whose lease is in %s, is gone", holder(content), self.url)
            self._store.remove(LEASE)
        _held.add(self.identity)
        with contextlib.suppress(FileExistsError):  # of another run, or of this one if its client repeated the request
            self._store.create(LEASE, self._content())
        time.sleep(SETTLE)
        if (content := read(self._store)).get("id") != self.identity:
            raise UserError(f"the workdir {self.url} was taken by {holder(content) if content else 'another run'} at "
                            "the same time; give another --workdir, or try again after that run")
        self._checked = time.monotonic()
        return self.identity

    def check(self, after: float | None = None) -> None:
        """Reads and renews the lease, if the last check was at least `after` seconds ago, by default EVERY. Raises
        LeaseLost if this run no longer holds it."""
        after = EVERY if after is None else after
        with self._lock:
            if not self.lost and time.monotonic() - self._checked >= after:
                try:
                    content = read(self._store)
                except UserError as error:
                    self.lost = str(error)
                else:
                    self.lost = "" if content.get("id") == self.identity else (
                        f"{holder(content)} has taken {self.url}" if content else
                        f"{LEASE} was removed from {self.url}")
                if self._taker and not self.lost:
                    self._store.write(LEASE, self._content())
                self._checked = time.monotonic()
            if self.lost:
                raise LeaseLost(self.lost)

    def release(self) -> None:
        """Removes the lease, if this run holds it. Later checks raise LeaseLost."""
        with self._lock:
            self.lost = self.lost or f"this run has given {self.url} back"
            _held.discard(self.identity)
            with contextlib.suppress(Exception):  # a lease that stays expires after `SILENT` seconds
                if read(self._store).get("id") == self.identity:
                    self._store.remove(LEASE)

    def _gone(self, content: dict) -> bool:
        """Returns whether the holder of a lease is known to have ended. Raises UserError if it runs."""
        previous, since = self._other
        if alive(content) or (previous and content != previous):
            raise in_use(self.url, content)
        if alive(content) is False:
            return True
        if not previous:
            self._other = content, time.monotonic()
            log.warning("%s has a lease on the workdir %s; waiting for up to %g s: this run starts if that one gives "
                        "no sign of life", holder(content), self.url, SILENT)
            return False
        return time.monotonic() - since >= SILENT

    def _content(self) -> bytes:
        return json.dumps({
            "id": self.identity, "host": socket.gethostname(), "process": os.getpid(), "machine": _machine(),
            "started": _started(os.getpid()), "time": time.time()}).encode()


def _machine() -> list | None:
    """Identifies this boot of this machine and the process namespace, in which process numbers are unique; None if the
    system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [socket.gethostname(), boot, os.stat("/proc/self/ns/pid").st_ino]
    except OSError:
        return None


def _started(process: int) -> str | None:
    """Returns the start time of a process of this machine in clock ticks since boot; None if it does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
