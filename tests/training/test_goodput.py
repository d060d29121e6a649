"""Where the time of a run goes: `lmrep.training.goodput`."""

import time

import jax
import jax.numpy as jnp
import pytest

from lmrep.training import goodput
from lmrep.training.metrics_log import TIMING

NOTHING = dict.fromkeys(goodput.KINDS, 0.0)


def line(began, now, step, **seconds):
    return {"split": "goodput", "began": began, "time": now, "step": step, **NOTHING, **seconds}


def test_steps_that_a_killed_run_repeats_are_no_goodput():
    """Two starts: 100 s to step 10, of which the second one keeps step 6, and trains to step 12."""
    total = goodput.summary([
        {"split": "train", "step": 5, "time": 1.0},
        line(1000, 1010, 0, preparation=10.0),
        line(1000, 1070, 6, preparation=10.0, steps=60.0),
        line(1000, 1110, 10, preparation=10.0, steps=100.0),
        line(1200, 1220, 6, preparation=20.0),
        line(1200, 1290, 12, preparation=20.0, steps=60.0, saves=10.0)])
    assert (total.total, total.starts, total.repeated, total.down) == (290.0, 2, 40.0, 90.0)
    assert total.seconds["preparation"] == 30.0 and total.seconds["saves"] == 10.0
    assert str(total) == ("41.4% of 4:50 went into training steps; preparation 10.3%, saves 3.4%, repeated steps "
                          "13.8%, between 2 starts 31.0%")


def test_going_back_within_a_start_repeats_steps_too():
    lines = [line(0, 0, 0), line(0, 4, 4, steps=4.0), line(0, 8, 8, steps=8.0), line(0, 10, 6, steps=10.0),
             line(0, 12, 8, steps=12.0)]
    assert goodput.summary(lines).repeated == 4.0


def test_a_start_that_finds_nothing_left_to_train_does_not_count():
    lines = [line(0, 1, 0), line(0, 5, 4, steps=4.0, preparation=1.0)]
    assert goodput.summary([*lines, line(90, 99, 4, preparation=9.0)]) == goodput.summary(lines)


def test_damaged_lines_do_not_count_and_a_clock_may_be_set_back():
    lines = [line(50, 51, 0, preparation=1.0), line(50, 20, 4, preparation=1.0, steps=3.0)]
    total = goodput.summary([{"split": "goodput", "step": 0, "began": 1.0}, *lines])
    assert (total.total, total.down) == (4.0, 0.0) and str(total).startswith("75.0% of 0:04 ")
    assert goodput.summary([line(0, 0, 0)]).total > 0


def test_without_lines_nothing_is_known(tmp_path):
    assert goodput.summary([{"split": "train", "step": 1}]) is None
    assert goodput.read(tmp_path) is None
    (tmp_path / TIMING).mkdir()
    assert goodput.read(tmp_path) is None


def test_laps_add_up_to_the_time_and_compilation_counts_apart():
    """Tracing within tracing counts once."""
    watch = goodput.Stopwatch()
    begin = time.monotonic()
    watch.lap("preparation")
    with watch.compilation():
        jax.jit(lambda x: jax.jit(lambda y: jnp.sin(y) @ y)(x) * 2.125)(jnp.ones((7, 7)))
    watch.lap("steps")
    spent = time.monotonic() - begin
    assert sum(watch.seconds.values()) == pytest.approx(spent, abs=5e-3)
    assert watch.seconds["compilation"] > watch.seconds["steps"] > 0
    before = watch.seconds["compilation"]
    jax.jit(lambda x: x * 3.375)(jnp.ones(5))
    assert watch.seconds["compilation"] == before
