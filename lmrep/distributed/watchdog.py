"""Of several processes that train together, one that stops is named by the others, which then exit.

Without a watchdog they would wait for it in a collective operation for ever, or be ended by JAX with a stack trace. So
a thread of each process tells once in a while, through the key-value store of JAX's coordinator (which is process 0),
how far it is, and hears how far the others are. What it finds wrong for longer than `patience`:

- a process is silent: killed, suspended, or cut off from the network. That is process 0 too, if the store is silent;
- it talks, and stands still while the others are further: hung in a read, say;
- nobody is further than the others, and all stand in a step: the devices, or the network between them, hang.

Nothing can be saved then; the last checkpoint is what there is. The main thread may be anywhere, so that the process
ends at once, with exit code 3 and one message. A process that ends by an error of its own says so before it goes.

How long that takes: a suspended process is missed after `patience`, or when JAX misses its heartbeats if that is first;
a killed one as soon as its connections break, and at most 25 s later; one that failed alone after 6 s to 16 s.
"""

import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.distributed import global_state  # the client of the key-value store has no public name

from lmrep.core.errors import RunFault

NEXT = "Its last checkpoint is whole: mend or replace that host, and give the same command again"
COMPILING = "compiling"  # how a mark begins after which a program is compiled
LEFT_ALONE = 6.0  # seconds after which a process that ended by an error of its own is missed


@dataclass
class Heard:
    """What is known of another process; times are of this one's clock."""

    said: dict[str, Any]
    at: float  # when it last said something new
    moved: float  # when it last was further than before


class Watch:
    """Tells of this process, and hears of the others. Use it as a context around all that they do together; of a
    single process it does nothing.

    Args:
      patience: seconds.
    """

    def __init__(self, patience: float = 300.0):
        self._patience, self._interval = patience, min(5.0, patience / 8)
        self._marks, self._what, self._since = 0, "preparing", time.monotonic()
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._error = ""
        self._heard: dict[int, Heard] = {}
        self._answered = time.monotonic()  # when the store last did
        self._number = 0  # of what this process said last
        self._key = ""

    # What the main thread says

    def mark(self, what: str) -> None:
        """Tells what is done next. Every process calls this equally often."""
        self._marks, self._what, self._since = self._marks + 1, what, time.monotonic()

    def through(self, batches: Iterable, what: str) -> Iterator:
        """The batches, with a mark at each."""
        for batch in batches:
            self.mark(what)
            yield batch

    def __enter__(self) -> "Watch":
        if jax.process_count() > 1:
            self._since = self._answered = time.monotonic()
            self._key = f"lmrep-watch/{next(_watches)}"  # what an earlier one said is not of this one
            self._catch_abort()
            for work in (self._talk, self._judge):
                threading.Thread(target=work, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _) -> None:
        if jax.process_count() == 1:
            return
        if error is not None:
            self._error = str(error) or type(error).__name__
            if isinstance(error, Exception) and not hasattr(error, "exit_code"):
                # Most likely a connection that broke because another process did; which, its silence tells.
                time.sleep(4 * self._interval)
                self._end(self.verdict(3 * self._interval))
            with contextlib.suppress(Exception):
                self._tell()
        self._ended.set()
        with self._ending:  # not while a verdict is being carried out
            _signal(signal.SIGABRT, None)

    # The threads

    def _talk(self) -> None:
        while not self._ended.wait(self._interval):
            with contextlib.suppress(Exception):  # a store that does not answer is found by its silence
                self._tell()
                told = global_state.client.key_value_dir_get(f"{self._key}/")
                self._hear({int(key.rpartition("/")[2]): json.loads(value) for key, value in told})

    def _tell(self) -> None:
        self._number += 1
        said = {"number": self._number, "marks": self._marks, "what": self._what, "host": socket.gethostname(),
                "error": self._error}
        global_state.client.key_value_set(f"{self._key}/{jax.process_index()}", json.dumps(said), allow_overwrite=True)

    def _hear(self, told: dict[int, dict[str, Any]]) -> None:
        now, heard = time.monotonic(), dict(self._heard)
        for index, said in told.items():
            before = heard.get(index)
            if before and before.said["number"] == said["number"]:
                continue
            further = not before or before.said["marks"] != said["marks"]
            heard[index] = Heard(said, now, now if further else before.moved)
        self._heard, self._answered = heard, now

    def _judge(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            if now - looked > 4 * self._interval:  # this process was suspended itself: all it knows is old
                self._heard = {}
                self._since = self._answered = now
            looked = now
            self._end(self.verdict(self._patience))

    def verdict(self, silence: float) -> str | None:
        """What is wrong, if anything is: who has been silent that long, or stands still."""
        now, me = time.monotonic(), jax.process_index()
        others = {index: heard for index, heard in self._heard.items() if index != me}
        if me and now - self._answered > silence:
            leader = f" ({others[0].said['host']})" if 0 in others else ""
            return f"process 0{leader}, which leads the run, has not answered for {now - self._answered:.0f} s"
        for index, heard in sorted(others.items()):
            name, gone = f"process {index} ({heard.said['host']})", now - heard.at
            if heard.said["error"]:
                if gone > min(LEFT_ALONE, silence):
                    return f"{name} ended: {heard.said['error']}"
            elif gone > silence:
                return f"{name} has been silent for {gone:.0f} s; it was at: {heard.said['what']}"
        waited = now - self._since
        quiet = any(now - heard.at > 3 * self._interval for heard in others.values())  # who is to be told as silent
        if waited <= self._patience or not others or quiet:
            return None
        last = min(others, key=lambda index: others[index].said["marks"])
        heard = others[last]
        late = 0 < heard.said["marks"] < self._marks and now - heard.moved > self._patience
        if late and not heard.said["what"].startswith(COMPILING):  # which may take one host longer
            return (f"process {last} ({heard.said['host']}) has stood still for {now - heard.moved:.0f} s at: "
                    f"{heard.said['what']}; this one is at: {self._what}")
        if all(heard.said["marks"] == self._marks for heard in others.values()) and self._what.startswith("step"):
            return f"all processes have stood still for {waited:.0f} s at: {self._what}; devices or network hang"
        return None

    def _end(self, verdict: str | None) -> None:
        """Carries a verdict out."""
        with self._ending:
            if verdict is None or self._ended.is_set():
                return
            here = f"process {jax.process_index()} ({socket.gethostname()})"
            print(f"lmrep: error: {verdict}. {here} stops. {NEXT}", file=sys.stderr, flush=True)
            os._exit(RunFault.exit_code)

    # JAX aborts a process whose coordinator is gone, at once, and one that it was told is dead, after its own timeout.
    # It takes no callback for that (in Python it throws), so the abort itself is caught.

    def _catch_abort(self) -> None:
        def aborting(_) -> None:
            self._end(self.verdict(min(self._patience, 3 * self._interval)) or _leader_gone())

        _signal(signal.SIGABRT, aborting)


_watches = itertools.count()  # of this process; all processes enter equally many
_handlers: list = []  # that C may still call


def _signal(number: int, handler: Any) -> None:
    """The C library's signal(): Python's own runs handlers in the main thread, which may never come back."""
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    if handler is not None:
        _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handler))
    libc.signal(number, ctypes.cast(_handlers[-1], ctypes.c_void_p) if handler is not None else None)


def _leader_gone() -> str | None:
    """What to tell where nobody listens at the coordinator's address any more."""
    host, _, port = (global_state.coordinator_address or "").rpartition(":")
    if jax.process_index() == 0 or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        return None
    except OSError as error:
        return f"process 0 ({host}), which leads the run, is gone: {error}"
