"""Runs of several processes: what one of them decides for all, and the step after which all stop."""

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lmrep.core.errors import RunFault, UserError

log = logging.getLogger(__name__)

FAULTS = {kind.__name__: kind for kind in (UserError, RunFault)}


def by_first_process(decide: Callable[[], Any]) -> Any:
    """What `decide()` gives on process 0 (JSON), or the UserError or RunFault that it raises there, on every process:
    one that failed alone would leave the others waiting for it. Each process calls this, in the same order."""
    if jax.process_count() == 1:
        return decide()
    told = b""
    if jax.process_index() == 0:
        try:
            told = json.dumps({"value": decide()}).encode()
        except (UserError, RunFault) as fault:
            told = json.dumps({"fault": str(fault), "kind": type(fault).__name__}).encode()
        except OSError as error:
            told = json.dumps({"fault": f"process 0 failed: {error}", "kind": RunFault.__name__}).encode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(told))))
    padded = np.frombuffer(told.ljust(size), np.uint8)
    outcome = json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())
    if "fault" in outcome:
        raise FAULTS[outcome["kind"]](outcome["fault"])
    return outcome["value"]


class Stop(threading.Event):
    """Set once a run is asked to stop; `signal` is the number of the signal that asked."""

    signal = signal.SIGTERM


@contextlib.contextmanager
def stop_flag() -> Iterator[Stop]:
    """A flag that SIGTERM and Ctrl-C set, in the main thread of a single process. A second Ctrl-C interrupts."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread() or jax.process_count() > 1:
        yield stop  # of several processes, JAX's own preemption service is told
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def asked(number: int, _) -> None:
        stop.signal = number
        stop.set()
        if number == signal.SIGINT:
            signal.signal(number, former[number])
            log.warning("stopping after this step, which will be saved; Ctrl-C again stops at once, and loses it")

    for number in former:
        signal.signal(number, asked)
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def should_stop(stop: Stop, call: int) -> bool:
    """Whether every process stops now; `call` counts, alike on all of them, how often this was asked."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point(call)
    return stop.is_set()
