"""The steps that a budget allows are decided once, and kept by a run that is resumed."""

import itertools
import json
from types import SimpleNamespace

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.experiment import budget
from lmrep.training.speed import VALIDATIONS, Speed, decide
from tests import small


def test_the_steps_are_those_that_fit():
    assert decide(Speed(step=0.5, validation=0.0, spent=10.0), 120.0) == (200, 20)
    # Validations may take a twentieth of the time: 2 of 3 s, and one before the first step.
    assert decide(Speed(step=0.5, validation=3.0, spent=10.0), 120.0) == (182, 91)
    steps, every = decide(Speed(step=0.1, validation=0.1, spent=1.0), 3600.0)
    assert steps == int((3600 - 2 - (VALIDATIONS + 1) * 0.1) / 0.1) and every == -(-steps // VALIDATIONS)
    with pytest.raises(UserError, match=r"config\.budget is 0:20, of which compiling and validating take 0:22"):
        decide(Speed(step=0.5, validation=1.0, spent=10.0), 20.0)


def test_a_run_with_a_budget_resumes_with_its_steps(tmp_path, monkeypatch):
    """The speed is measured once, by a clock on which another program slows a step, and its result replaced, so that
    the run is short."""
    small.corpus(tmp_path / "texts")
    config = small.config(tmp_path / "texts")
    measured = []

    def measure(*arguments):
        measured.append(real(*arguments))
        return Speed(step=1.0, validation=0.0, spent=0.0)

    # Seconds from one reading to the next: the start, the step that is compiled, and the others.
    clock = itertools.accumulate(itertools.chain((0, 30, 1, 60), itertools.repeat(1)))
    monkeypatch.setattr(budget.speeds, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    real = budget.speeds.measure
    monkeypatch.setattr(budget.speeds, "measure", measure)
    train = {"data_dir": tmp_path / "data", "budget": "12s", "log.report": False}
    outcome = lmrep.train(config, tmp_path / "run", **train)
    record = json.loads((tmp_path / "run/config.json").read_text())["config"]
    assert outcome.steps == record["steps"] == 12 and record["budget"] == "12s"
    assert record["evaluation"]["every"] == record["checkpoint"]["every"] == 2
    assert len(measured) == 1 and measured[0].step == 1 and measured[0].spent > 90
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    for path in (tmp_path / "run/checkpoints").iterdir():  # as killed before its first checkpoint
        path.rename(tmp_path / path.name)
    lmrep.train(config, tmp_path / "run", **train)
    assert len(measured) == 1 and (tmp_path / "run/metrics.jsonl").read_bytes() == before
    with pytest.raises(UserError, match="budget"):
        lmrep.train(config, tmp_path / "run", **(train | {"budget": "13s"}))
