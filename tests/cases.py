"""Cases of parametrized tests."""

from collections.abc import Iterable

import pytest


def slow_after(count: int, cases: Iterable) -> list:
    """The cases as parameters: the first `count` run in the quick tests, the others only in the slow ones."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] * (i >= count))
            for i, case in enumerate(cases)]
