"""Results of checks."""

from typing import Any, NamedTuple

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
MAX_EPOCHS = 1000  # more epochs give a warning; BERT was trained for 40


class Finding(NamedTuple):
    """The result of one check."""

    mark: str  # OK, WARNING, FAILED or SKIPPED
    check: str  # name of the check
    text: str  # the result, and how to fix a failure, in one line


class Result(NamedTuple):
    """The result of a check that did not fail."""

    text: str
    value: Any = True  # passed to later checks
    mark: str = OK
