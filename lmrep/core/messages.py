"""Messages for users: the package's log on standard error, and the format of tables, sizes and numbers."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lmrep.core.errors import readable


class _Plain(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        label = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        try:
            print(label + readable(record.getMessage()), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def show_messages(level: int = logging.INFO) -> None:
    """Prints the package's log messages to the current `sys.stderr`, so that they appear above a progress line."""
    package = logging.getLogger("lmrep")
    if not package.handlers:
        package.addHandler(_Plain())
    package.setLevel(level)
    package.propagate = False


def aligned(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust) -> str:
    """Formats a table with aligned columns, two spaces apart; `align` pads a cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(align, row, widths)).rstrip() for row in rows)


def byte_size(n: float) -> str:
    """Formats a number of bytes with up to three digits and a unit: 512 B, 1.2 kB, 45.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} TB" if n < 999.5 else f"{n:,.0f} TB"


def counted(number: int, noun: str) -> str:
    """Formats a number and a noun, in the plural unless the number is 1: 1 column, 2 columns."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def install_hint(extra: str) -> str:
    """Returns the command that installs an extra of setup.py. The project is not on a package index."""
    return f"pip install -e '.[{extra}]' in the checkout of lmrep"


def shown(value: Any, limit: int = 100) -> str:
    """Returns the `repr` of a value, cut after `limit` characters, for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"
