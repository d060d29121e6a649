"""Decisions that all processes of a run share: results of process 0, and the step after which all stop."""

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from lmrep.core.errors import RunFault, UserError
from lmrep.distributed.process_group import gather_texts

log = logging.getLogger(__name__)


def by_first_process(decide: Callable[[], Any]) -> Any:
    """Returns the result of `decide()` on process 0, for every process. All processes call this in the same order.

    Args:
      decide: returns JSON. Only process 0 calls it.

    Raises:
      UserError, RunFault: raised by `decide` on process 0, and again on every process, so that none waits for others.
        An OSError becomes a RunFault.
    """
    if jax.process_count() == 1:
        return decide()
    outcome = {}
    if jax.process_index() == 0:
        try:
            outcome = {"value": decide()}
        except (UserError, RunFault) as error:
            outcome = {"error": str(error), "refused": isinstance(error, UserError)}
        except OSError as error:
            outcome = {"error": f"process 0 failed: {error}", "refused": False}
    outcome = json.loads(gather_texts(json.dumps(outcome))[0])
    if "error" in outcome:
        raise (UserError if outcome["refused"] else RunFault)(outcome["error"])
    return outcome["value"]


class Stop(threading.Event):
    """An event that is set when the run should stop; `signal` is the number of the received signal."""

    signal = signal.SIGTERM


@contextlib.contextmanager
def stop_flag() -> Iterator[Stop]:
    """Yields an event that SIGTERM and Ctrl-C set in the main thread of a single process. A second Ctrl-C interrupts
    the run."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread() or jax.process_count() > 1:
        yield stop  # with several processes, JAX's preemption service handles signals
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def request_stop(number: int, _) -> None:
        stop.signal = number
        stop.set()
        if number == signal.SIGINT:
            signal.signal(number, previous[number])
            log.warning("saving and stopping after this step; press Ctrl-C again to stop at once without saving")

    for number in previous:
        signal.signal(number, request_stop)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def should_stop(stop: Stop, call: int) -> bool:
    """Returns whether all processes stop now. `call` is the number of this call, the same on all processes."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point(call)
    return stop.is_set()
