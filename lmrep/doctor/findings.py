"""What checks give."""

from typing import Any, NamedTuple

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"


class Finding(NamedTuple):
    """One check.

    Attributes:
      mark: OK, WARNING, FAILED or SKIPPED.
      check: its name.
      text: what was found, and where it is not well what to do; one line.
    """

    mark: str
    check: str
    text: str


class Seen(NamedTuple):
    """What a check that did not fail saw, `value` for later checks to take."""

    text: str
    value: Any = True
    mark: str = OK


def gigabytes(n: float) -> str:
    """Bytes, for people."""
    return f"{n / 1e9:,.0f} GB" if n >= 1e11 else f"{n / 1e9:.3g} GB"
