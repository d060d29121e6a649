"""What processes agree on; two threads stand for two processes."""

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote import NoBucket, Refused
from lmrep.distributed import process_group
from lmrep.distributed.agreement import by_first_process, should_stop, stop_flag


@pytest.fixture
def on_two(monkeypatch):
    """Calls `action(index)` on two threads; returns what each returned or raised."""
    thread, barrier, sent = threading.local(), threading.Barrier(2, timeout=60), [None, None]

    def process_allgather(array):
        barrier.wait()
        sent[thread.index] = array
        barrier.wait()
        return np.stack(sent)

    def call(action):
        def as_process(index):
            thread.index = index
            try:
                return action(index)
            except Exception as error:
                return error

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(as_process, range(2)))

    monkeypatch.setattr(multihost_utils, "process_allgather", process_allgather)
    monkeypatch.setattr(process_group, "joined", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: thread.index)
    return call


def test_texts_are_gathered_in_the_order_of_processes(on_two):
    texts = ["é", "a longer text"]
    assert on_two(lambda index: process_group.gather_texts(texts[index])) == [texts, texts]
    assert on_two(lambda index: process_group.gather_texts(texts[0] * index)) == [["", texts[0]]] * 2
    assert on_two(lambda index: process_group.gather_texts("")) == [["", ""]] * 2


def test_each_process_keeps_its_result_once_all_have_one(on_two):
    assert on_two(lambda index: process_group.agreed(lambda: index + 3)) == [3, 4]
    assert on_two(lambda index: process_group.first()) == [True, False]


@pytest.mark.parametrize(("raised", "kind", "text"), [
    (UserError("no é"), UserError, "no é"), (RunFault("full"), RunFault, "full"),
    (ValueError("3"), RunFault, "ValueError: 3")])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_process_is_one_of_all(on_two, failing, raised, kind, text):
    def fail():
        raise raised

    results = on_two(lambda index: process_group.agreed(fail if index == failing else lambda: 3))
    assert results[failing] is raised
    assert type(results[1 - failing]) is kind
    assert str(results[1 - failing]) == f"process {failing} on {socket.gethostname()}: {text}"


def test_the_first_process_decides_for_all(on_two):
    assert on_two(lambda index: by_first_process(lambda: [index, None])) == [[0, None]] * 2
    for raised, kind in ((UserError("a"), UserError), (RunFault("b"), RunFault), (OSError(5, "c"), RunFault),
                         (Refused("d"), RunFault), (NoBucket("e"), UserError)):
        def fail(raised=raised):
            raise raised

        assert [type(result) for result in on_two(lambda index, fail=fail: by_first_process(fail))] == [kind] * 2


@pytest.fixture
def python_s_interrupt():
    """Python's own handler of Ctrl-C: a shell starts background commands with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_signals_stop_a_run_after_its_step_and_a_second_one_at_once(python_s_interrupt):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_flag() as stop:
        assert not should_stop(stop, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert should_stop(stop, 2) and stop.signal == signal.SIGTERM
    with stop_flag() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert should_stop(stop, 1) and stop.signal == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
