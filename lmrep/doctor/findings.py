"""Results of checks."""

from typing import Any, NamedTuple

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
MAX_EPOCHS = 1000  # above which a run is warned of; BERT was trained for 40


class Finding(NamedTuple):
    """The result of one check."""

    mark: str  # OK, WARNING, FAILED or SKIPPED
    check: str  # its name
    text: str  # what was found, and how to fix it; one line


class Result(NamedTuple):
    """The result of a check that did not fail, with a `value` for later checks."""

    text: str
    value: Any = True
    mark: str = OK
