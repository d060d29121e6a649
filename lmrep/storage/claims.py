"""Who trains the run in a remote store, which has no locks: MARK there names the process that holds it, when that was
last heard of, and whose copy of the run the store's is."""

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
EVERY, SILENT = 30.0, 600.0  # seconds between signs of life; after which a holder that gives none is gone


def mark(store: Store) -> dict:
    """What MARK says; {} where it is not there."""
    try:
        found = json.loads(store.read(MARK) or b"{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def check_free(url: str, said: dict) -> None:
    """Raises UserError where, by what its mark said, a run holds the store."""
    host, number, silence = said.get("host"), said.get("process"), time.time() - said.get("time", 0)
    gone = host == socket.gethostname() and not _alive(number)
    if said.get("held") and silence < SILENT and not gone:
        raise UserError(
            f"the workdir {url} is in use by process {number} on {host}, heard of {max(silence, 0):.0f} s ago; wait "
            "for that run, stop it, or give another --workdir (a run that was killed on another machine counts as gone "
            f"{SILENT / 60:.0f} minutes after it was last heard of)")


class Claim:
    """This process's hold of a store, to train in `place`: from `take` to `release`.

    Attributes:
      copy: names the copy whose uploads the store holds from then on.
    """

    def __init__(self, store: Store, place: Path):
        self._store, self._place = store, str(place)
        self._former, self._mark, self._marked = {}, {}, 0.0

    @property
    def copy(self) -> str:
        return self._mark["copy"]

    def take(self, origin: str | None) -> None:
        """Takes the store. `origin` is the `copy` that `place` was of before; where the store's is another, or there is
        none, it begins a new one. Raises UserError where another process holds the store."""
        self._former = mark(self._store)
        # A process that had the lock of this copy is gone, for the lock is ours.
        if self._former.get("host") != socket.gethostname() or self._former.get("place") != self._place:
            check_free(self._store.url, self._former)
        known = origin and origin == self._former.get("copy")
        self._mark = {"copy": origin if known else uuid.uuid4().hex, "held": True, "host": socket.gethostname(),
                      "process": os.getpid(), "place": self._place}
        self._write()

    def refresh(self, after: float = EVERY) -> None:
        """Says that this process is alive, if it has not for so long. Raises RunFault where another has taken the
        store."""
        if time.monotonic() - self._marked < after:
            return
        if (found := mark(self._store)).get("copy") != self.copy:
            raise RunFault(f"process {found.get('process')} on {found.get('host')} has taken {self._store.url}, or it "
                           "was removed there")
        self._write()

    def release(self, used: bool) -> None:
        """Lets the store go; where it was not `used` its mark is as it was found."""
        with contextlib.suppress(Exception):  # it will count as gone
            if mark(self._store).get("copy") != self.copy:
                return
            if left := self._mark if used else self._former:
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
