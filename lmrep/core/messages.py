"""The package's log messages on standard error, in one form for every command."""

import logging
import sys


class _Plain(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        label = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        try:
            print(label + record.getMessage(), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def show_messages(level: int = logging.INFO) -> None:
    """Prints the package's log messages to the current `sys.stderr`, so that they appear above a progress line."""
    package = logging.getLogger("lmrep")
    if not package.handlers:
        package.addHandler(_Plain())
    package.setLevel(level)
    package.propagate = False
