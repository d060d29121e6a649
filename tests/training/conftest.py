"""Runs of one objective and optimizer share their compiled programs."""

import functools

import pytest

from lmrep.training import loop

PROGRAMS = {}  # and the objective of each, whose identity is in its key


def shared(make, objective, *rest):
    """`make(objective, *rest)`, made once."""
    key = make, id(objective), *rest
    if key not in PROGRAMS:
        PROGRAMS[key] = objective, make(objective, *rest)
    return PROGRAMS[key][1]


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch):
    for name in ("compiled_train_step", "Evaluator"):
        monkeypatch.setattr(loop, name, functools.partial(shared, getattr(loop, name)))
