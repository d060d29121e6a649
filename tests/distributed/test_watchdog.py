"""What the watchdog concludes from reports of other processes. `tests/training/test_fault_processes.py` has runs."""

import time

import jax
import pytest

from lmrep.distributed.watchdog import Peer, Watch

REPORT = {"number": 1, "progress": 5, "activity": "step 5", "host": "other", "error": ""}
LATE = {"waited": 9, "still": 9, "progress": 3, "activity": "step 3"}


def verdict(monkeypatch, index=0, silent=0.0, still=0.0, waited=0.0, unanswered=0.0, activity_here="step 5", **report):
    """With a patience of 8 s, hence reports each second. Seconds since: the other process's last report and its last
    progress; the last progress of this one, which is at 5; and the last answer of the store."""
    monkeypatch.setattr(jax, "process_index", lambda: index)
    watch, now = Watch(8.0), time.monotonic()
    watch._progress, watch._activity, watch._since = 5, activity_here, now - waited
    watch._store_answered = now - unanswered
    watch._peers = {1 - index: Peer(REPORT | report, now - silent, now - still)}
    return watch.verdict(8.0)


@pytest.mark.parametrize(("facts", "expected"), [
    ({}, None),
    ({"silent": 7}, None), ({"silent": 9}, "process 1 (other) has been silent for 9 s; it was at: step 5"),
    ({"unanswered": 9}, None),  # process 0 is beside the store
    ({"index": 1, "unanswered": 7}, None),
    ({"index": 1, "unanswered": 9}, "process 0 (other), which leads the run, has not answered for 9 s"),
    ({"error": "no space", "silent": 5}, None),
    ({"error": "no space", "silent": 7}, "process 1 (other) ended: no space"),
    (LATE, "process 1 (other) has stood still for 9 s at: step 3; this one is at: step 5"),
    (LATE | {"waited": 7}, None), (LATE | {"still": 7}, None), (LATE | {"progress": 0}, None),
    (LATE | {"progress": 6}, None), (LATE | {"activity": "compiling the step"}, None),
    (LATE | {"silent": 4}, None),  # soon to be reported as silent
    ({"waited": 9, "still": 9}, "all processes have stood still for 9 s at: step 5; devices or network hang"),
    ({"waited": 9, "still": 9, "activity_here": "evaluating"}, None),
])
def test_verdict(monkeypatch, facts, expected):
    assert verdict(monkeypatch, **facts) == expected


def test_a_report_counts_once_and_progress_only_if_it_changed():
    watch = Watch(8.0)
    watch._receive({1: REPORT})
    watch._peers[1].reported_at = watch._peers[1].progressed_at = before = time.monotonic() - 9
    watch._receive({1: REPORT})
    assert (watch._peers[1].reported_at, watch._peers[1].progressed_at) == (before, before)
    watch._receive({1: REPORT | {"number": 2}})
    assert watch._peers[1].reported_at > before and watch._peers[1].progressed_at == before
    watch._receive({1: REPORT | {"number": 3, "progress": 6}})
    assert watch._peers[1].progressed_at > before


def test_a_single_process_is_not_watched():
    with Watch(8.0) as watch:
        assert list(watch.through([1, 2], "step")) == [1, 2] and watch._store is None
    assert watch._progress == 2 and watch._activity == "step"
