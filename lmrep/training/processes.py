"""Runs of several processes: what one of them decides for all, and the step after which all stop."""

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lmrep.core.errors import RunFault, UserError

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


@contextlib.contextmanager
def stop_flag() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, in the main thread of a single process."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread() or jax.process_count() > 1:
        yield stop  # of several processes, JAX's own preemption service is told
        return
    former = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, former)


def stops(stop: threading.Event, call: int) -> bool:
    """Whether every process stops now; `call` counts, alike on all of them, how often this was asked."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point(call)
    return stop.is_set()
