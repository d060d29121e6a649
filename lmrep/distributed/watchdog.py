"""A watchdog for runs of several processes: it detects a process that stops, and ends the others.

Without it, the others wait in a collective operation until JAX notices missing heartbeats and aborts them with a stack
trace, or forever if the process hangs. With it, a thread of each process regularly reports its progress through the
key-value store of JAX's coordinator (process 0) and reads the reports of the others. Each of these conditions is an
error if it lasts longer than `patience`:

- a process is silent: killed, suspended or cut off from the network. This includes process 0, if the store is silent;
- a process is alive but makes no progress while the others do: for example, it hangs in a read;
- no process leaves the current step: the devices or the network between them hang.

Nothing can be saved then, because the main thread may be anywhere: the process prints one message and exits with code 3
at once. A process that fails by itself reports its error before it exits. A suspended process is detected after
`patience`, or when JAX misses its heartbeats if that is earlier; a killed one within 25 s; a failed one after 6 s to
16 s.

JAX has no public interface to the key-value store, so the watchdog is off by default (`faults.patience=0`). Only when
it is on does this module import from `jax._src`.
"""

import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from lmrep.core.errors import RunFault
from lmrep.distributed.process_group import on_abort

NEXT_STEP = "Its last checkpoint is complete: repair or replace that host, and give the same command again"
COMPILING = "compiling"  # activities that start with this may take one host longer
FAILED_ALONE = 6.0  # seconds after which the others report a process that ended with an error


@dataclass
class Peer:
    """The last report of a process. Times are of this process's monotonic clock, in seconds."""

    report: dict[str, Any]
    reported_at: float  # when its report last changed
    progressed_at: float  # when its progress last changed


class Watch:
    """Watches the processes of a run within the context, which contains all their collective operations. Does nothing
    for a single process.

    Args:
      patience: seconds until a problem is an error; 0 switches the watchdog off.
    """

    def __init__(self, patience: float = 0.0):
        self._patience, self._interval = patience, min(5.0, patience / 8)
        self._progress, self._activity, self._since = 0, "preparing", time.monotonic()
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._error = ""
        self._peers: dict[int, Peer] = {}
        self._store_answered = time.monotonic()
        self._report_number = 0
        self._store: Any = None
        self._coordinator = self._key = ""

    # Called by the main thread

    def mark(self, activity: str) -> None:
        """Records the next activity of this process for its reports. All processes call this equally often."""
        self._progress, self._activity, self._since = self._progress + 1, activity, time.monotonic()

    def through(self, batches: Iterable, activity: str) -> Iterator:
        """Yields the batches, and calls `mark` before each."""
        for batch in batches:
            self.mark(activity)
            yield batch

    def __enter__(self) -> "Watch":
        if self._patience and jax.process_count() > 1:
            from jax._src.distributed import global_state  # see the module's docstring

            self._store, self._coordinator = global_state.client, global_state.coordinator_address or ""
            self._since = self._store_answered = time.monotonic()
            self._key = f"lmrep-watch/{next(_watches)}"  # the store keeps reports of earlier watches
            # JAX aborts a process whose coordinator has ended. It has no callback for that (in Python it throws).
            on_abort(lambda: self._end(self.verdict(min(self._patience, 3 * self._interval)) or self._leader_gone()))
            for work in (self._communicate, self._check):
                threading.Thread(target=work, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, error_type: type | None, error: BaseException | None, _) -> None:
        if self._store is None:
            return
        if error is not None:
            self._error = str(error) or type(error).__name__
            if isinstance(error, Exception) and not hasattr(error, "exit_code"):
                # Probably a connection that broke because another process died: wait until its silence shows which.
                time.sleep(4 * self._interval)
                self._end(self.verdict(3 * self._interval))
            with contextlib.suppress(Exception):
                self._send()
        self._ended.set()
        with self._ending:  # another thread may be printing a verdict
            on_abort(None)

    # Called by the threads

    def _communicate(self) -> None:
        while not self._ended.wait(self._interval):
            with contextlib.suppress(Exception):  # `verdict` detects a store that does not answer
                self._send()
                reports = self._store.key_value_dir_get(f"{self._key}/")
                self._receive({int(key.rpartition("/")[2]): json.loads(value) for key, value in reports})

    def _send(self) -> None:
        self._report_number += 1
        report = {"number": self._report_number, "progress": self._progress, "activity": self._activity,
                  "host": socket.gethostname(), "error": self._error}
        self._store.key_value_set(f"{self._key}/{jax.process_index()}", json.dumps(report), allow_overwrite=True)

    def _receive(self, reports: dict[int, dict[str, Any]]) -> None:
        now, peers = time.monotonic(), dict(self._peers)
        for index, report in reports.items():
            previous = peers.get(index)
            if previous and previous.report["number"] == report["number"]:
                continue
            progressed = not previous or previous.report["progress"] != report["progress"]
            peers[index] = Peer(report, now, now if progressed else previous.progressed_at)
        self._peers, self._store_answered = peers, now

    def _check(self) -> None:
        checked = time.monotonic()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            if now - checked > 4 * self._interval:  # this process itself was suspended: its reports are old
                self._peers = {}
                self._since = self._store_answered = now
            checked = now
            self._end(self.verdict(self._patience))

    def verdict(self, silence: float) -> str | None:
        """Describes a process that has been silent for `silence` seconds, has failed or makes no progress; returns None
        if there is none."""
        now, own_index = time.monotonic(), jax.process_index()
        others = {index: peer for index, peer in self._peers.items() if index != own_index}
        if own_index and now - self._store_answered > silence:
            host = others[0].report["host"] if 0 in others else self._coordinator.rpartition(":")[0]
            return f"process 0 ({host}), which leads the run, has not answered for {now - self._store_answered:.0f} s"
        for index, peer in sorted(others.items()):
            name, silent = f"process {index} ({peer.report['host']})", now - peer.reported_at
            if peer.report["error"]:
                if silent > min(FAILED_ALONE, silence):
                    return f"{name} ended: {peer.report['error']}"
            elif silent > silence:
                return f"{name} has been silent for {silent:.0f} s; it was at: {peer.report['activity']}"
        waited = now - self._since
        # A process that is about to be reported as silent must not be reported as standing still.
        quiet = any(now - peer.reported_at > 3 * self._interval for peer in others.values())
        if waited <= self._patience or not others or quiet:
            return None
        last = min(others, key=lambda index: others[index].report["progress"])
        peer = others[last]
        late = 0 < peer.report["progress"] < self._progress and now - peer.progressed_at > self._patience
        if late and not peer.report["activity"].startswith(COMPILING):
            return (f"process {last} ({peer.report['host']}) has stood still for {now - peer.progressed_at:.0f} s at: "
                    f"{peer.report['activity']}; this one is at: {self._activity}")
        equal = all(peer.report["progress"] == self._progress for peer in others.values())
        if equal and self._activity.startswith("step"):
            return f"all processes have stood still for {waited:.0f} s at: {self._activity}; devices or network hang"
        return None

    def _end(self, verdict: str | None) -> None:
        """Prints a verdict and ends this process; None does nothing."""
        with self._ending:
            if verdict is None or self._ended.is_set():
                return
            name = f"process {jax.process_index()} ({socket.gethostname()})"
            print(f"lmrep: error: {verdict}. {name} stops. {NEXT_STEP}", file=sys.stderr, flush=True)
            os._exit(RunFault.exit_code)

    def _leader_gone(self) -> str | None:
        """Returns a verdict if nothing listens at the coordinator's address any more, else None."""
        host, _, port = self._coordinator.rpartition(":")
        if jax.process_index() == 0 or not port.isdecimal():
            return None
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return None
        except OSError as error:
            return f"process 0 ({host}), which leads the run, is gone: {error}"


_watches = itertools.count()  # all processes enter equally many
