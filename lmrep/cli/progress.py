"""Shows the progress of commands that read a text file."""

import contextlib
from collections.abc import Callable, Iterator

from lmrep.core.progress import ProgressReporter, StatusLine


@contextlib.contextmanager
def line_progress() -> Iterator[Callable[[int, int, int], None]]:
    """Shows progress on standard error. The context gives a function to call with (number of further lines, number of
    further tokens, number of lines in all)."""
    lines = tokens = total = 0
    reporter: ProgressReporter | None = None

    def text(seconds: float) -> str:
        return f"{lines:,} of {total:,} lines  {tokens / max(seconds, 1e-9):,.0f} tokens/s"

    with StatusLine() as status:
        def advance(more_lines: int, more_tokens: int, all_lines: int) -> None:
            nonlocal lines, tokens, total, reporter
            lines, tokens, total = lines + more_lines, tokens + more_tokens, all_lines
            reporter = reporter or ProgressReporter(status.write, total, every=status.every)
            reporter.report(lines, text)

        yield advance
        if reporter:
            reporter.finish(text)
