"""Progress of long work: a line every few seconds, with the time left."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lmrep.core.errors import UserError


class ProgressReporter:
    """Emits a progress line every few seconds.

    Args:
      emit: called with each line.
      total: the amount of work; 0 if unknown.
      done: the amount that an earlier process has done.
      every: seconds between lines.
    """

    def __init__(self, emit: Callable[[str], None], total: float = 0, done: float = 0, every: float = 3.0):
        self._emit, self._total, self._before, self._every = emit, total, done, every
        self._start = self._last = time.monotonic()

    def report(self, done: float, text: Callable[[float], str]) -> None:
        """Emits `text(seconds since the start)` and the time left, if the previous line is old enough. The end of a
        known total is not reported: the caller's next message says it."""
        now = time.monotonic()
        if now - self._last < self._every or (self._total and done >= self._total):
            return
        self._last = now
        line = text(now - self._start)
        if self._total and done > self._before:
            line += f", {duration((now - self._start) * (self._total - done) / (done - self._before))} left"
        self._emit(line)

    def finish(self, text: Callable[[float], str]) -> None:
        """Emits `text(seconds since the start)`."""
        self._emit(text(time.monotonic() - self._start))


def duration(seconds: float) -> str:
    """Formats seconds as "1:02:03", or "2:03" below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def parse_duration(text: str, what: str) -> float:
    """Parses "20m", "1h30m" or "90s" to seconds. Raises UserError, which names `what`, for anything else, or 0."""
    match = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (total := 3600 * hours + 60 * minutes + seconds):
        raise UserError(f"{what} is {text!r}; expected a time such as 20m, 1h30m or 90s")
    return float(total)


class Screen(Console):
    """A rich console on standard error, or on `file`. Raises BrokenPipeError for a closed pipe, where rich exits."""

    def __init__(self, file: TextIO | None = None, **options):
        super().__init__(file=file, stderr=file is None, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the pipe is closed")


class StatusLine:
    """A line that is updated in place on a terminal, and printed again elsewhere. Other output appears above it. Use it
    as a context manager, or call `close`."""

    def __init__(self, screen: Screen | None = None):
        self._screen, self._text = screen or Screen(), ""
        self._live = Live(console=self._screen, auto_refresh=False) if self._screen.is_terminal else None
        if self._live:
            self._live.start()

    @property
    def every(self) -> float:
        """The recommended seconds between lines: fewer on a terminal."""
        return 0.2 if self._live else 10.0

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def write(self, text: str) -> None:
        """Shows a text if it differs from the previous one."""
        if text == self._text:
            return
        self._text = text
        if self._live:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._screen.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()


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
