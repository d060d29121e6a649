"""Traces of a few steps; a trace that fails does not stop the run."""

import logging

import jax.numpy as jnp
import pytest
from jax._src import profiler

from lmrep.training.profiling import WARM_UP, Profile


@pytest.fixture(autouse=True)
def nothing_left():
    """Ends traces that could not be written, which JAX would still consider active in the next test."""
    yield
    profiler._profile_state.reset()


class Line:
    """Records the updates of a progress line."""

    def __init__(self):
        self.updates = []

    def update(self, *words):
        self.updates.append(words)


def steps(profile, first, last):
    for step in range(first, last + 1):
        jnp.zeros(3).block_until_ready()
        profile.update(step, {"loss": 1.0}, 2.0, None)


def test_updates_are_passed_on_and_steps_traced_after_a_warm_up(tmp_path, caplog):
    line = Line()
    with caplog.at_level(logging.INFO, "lmrep"), Profile(line, tmp_path, 2, resumed=7) as profile:
        steps(profile, 8, 7 + WARM_UP + 1)
        assert not caplog.records
        steps(profile, 7 + WARM_UP + 2, 7 + WARM_UP + 3)
        (trace,) = tmp_path.rglob("*.trace.json.gz")
        assert f"profile from step {8 + WARM_UP} on: {trace}" in caplog.text
    assert line.updates[0] == (8, {"loss": 1.0}, 2.0, None) and len(line.updates) == WARM_UP + 3


@pytest.mark.slow
def test_a_run_that_ends_during_the_trace_has_a_shorter_one(tmp_path):
    with Profile(Line(), tmp_path, 100, resumed=0) as profile:
        steps(profile, 1, WARM_UP + 1)
    assert len(list(tmp_path.rglob("*.trace.json.gz"))) == 1


def test_a_run_that_ends_before_the_trace_gets_a_warning(tmp_path, caplog):
    with Profile(Line(), tmp_path, 2, resumed=10) as profile:
        steps(profile, 11, 12)
    assert f"no profile: tracing begins after step {10 + WARM_UP}, and the last step was 12" in caplog.text


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    with Profile(Line(), tmp_path / "file/profile", 1, resumed=0) as profile:
        steps(profile, 1, WARM_UP + 2)
    assert "the profile could not be written to" in caplog.text
