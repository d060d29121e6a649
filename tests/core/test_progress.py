"""Progress of long work."""

import io

import pytest

from lmrep.core import progress
from lmrep.core.progress import ProgressReporter, Screen, StatusLine, duration


def reported(monkeypatch, times, total, amounts, **options):
    """The lines that reports of `amounts` at `times` emit; the first time is the start."""
    clock, lines = iter(times), []
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    reporter = ProgressReporter(lines.append, total, **options)
    for amount in amounts:
        reporter.report(amount, lambda seconds, amount=amount: f"{amount} in {seconds:g} s")
    return lines


def test_lines_are_emitted_every_few_seconds_with_the_time_left(monkeypatch):
    assert reported(monkeypatch, [0.0, 5.0, 12.0, 13.0], 1600, [100, 200, 300], every=10) == [
        "200 in 12 s, 1:24 left"]


def test_what_an_earlier_process_did_does_not_count_in_the_rate(monkeypatch):
    assert reported(monkeypatch, [0.0, 4.0], 10, [8], done=6) == ["8 in 4 s, 0:04 left"]


def test_without_a_total_there_is_no_time_left(monkeypatch):
    assert reported(monkeypatch, [0.0, 4.0], 0, [8]) == ["8 in 4 s"]


def test_end_is_not_reported(monkeypatch):
    assert reported(monkeypatch, [0.0, 4.0], 8, [8]) == []


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3725, "1:02:05")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_status_line_prints_each_new_text_once_where_there_is_no_terminal():
    file = io.StringIO()
    with StatusLine(Screen(file, width=80)) as line:
        for text in ("one", "one", "two"):
            line.write(text)
    assert file.getvalue() == "one\ntwo\n" and line.every == 10
