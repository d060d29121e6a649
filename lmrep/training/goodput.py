"""Goodput: the share of the time of a run that its training steps took, over all its starts.

Lines of `timing.jsonl` with the split "goodput" have the seconds since a start of `lmrep train` by `KINDS`, and
`began`, the Unix time of that start. They are written where training begins or continues, with every checkpoint, and at
the end.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from lmrep.config.json_files import read_lines
from lmrep.core.errors import UserError
from lmrep.core.progress import duration
from lmrep.training.metrics_log import TIMING, TimingLine

GOODPUT = "goodput"
KINDS = {"preparation": "until training begins: data, network, checkpoint", "compilation": "by XLA, with tracing",
         "input": "the device waits for a batch", "steps": "training steps", "validation": "validation",
         "saves": "training waits for a checkpoint"}


class Stopwatch:
    """Adds the time of a process to `KINDS`, from when it is made. Made and called by one thread."""

    def __init__(self):
        self.began, self.seconds = time.time(), dict.fromkeys(KINDS, 0.0)
        self._since, self._thread = time.monotonic(), threading.get_ident()
        self._compiled: list[tuple[float, float]] = []  # (begin, seconds) of what was traced or compiled

    def lap(self, kind: str) -> None:
        """Counts the time since the last call, but for compilation, as `kind`."""
        now = time.monotonic()
        self.seconds[kind] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Within the context, what this thread compiles counts as compilation."""
        jax.monitoring.register_event_duration_secs_listener(self._count)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(self._count)

    def _count(self, event: str, seconds: float, **_: object) -> None:
        if not event.startswith("/jax/core/compile/") or threading.get_ident() != self._thread:
            return
        begin, counted = time.monotonic() - seconds, 0.0
        while self._compiled and self._compiled[-1][0] >= begin:  # a part of this one
            counted += self._compiled.pop()[1]
        self._compiled.append((begin, seconds))
        self.seconds["compilation"] += seconds - counted
        self._since += seconds - counted


class Goodput(NamedTuple):
    """Where the time of a run went, in seconds."""

    total: float  # from the first start to the last line
    starts: int
    seconds: Mapping[str, float]  # by `KINDS`, of all starts; "steps" has those that were repeated
    repeated: float  # steps that were lost and done again
    down: float  # between starts, with what was done after a last checkpoint

    def __str__(self) -> str:
        useful = self.seconds["steps"] - self.repeated
        rest = {kind: seconds for kind, seconds in self.seconds.items() if kind != "steps"}
        rest |= {"repeated steps": self.repeated, f"between {self.starts} starts": self.down}
        parts = [f"{name} {seconds / self.total:.1%}" for name, seconds in rest.items() if seconds >= 5e-4 * self.total]
        return (f"{useful / self.total:.1%} of {duration(self.total)} went into training steps"
                + (f"; {', '.join(parts)}" if parts else ""))


def read(directory: Path) -> Goodput | None:
    """Returns where the time of a run went; None if no line says so."""
    with contextlib.suppress(UserError):  # timing.jsonl is optional
        lines = read_lines(TimingLine, directory / TIMING)
        return summary(lines.records if lines else ())
    return None


def summary(lines: Iterable[Mapping[str, float]]) -> Goodput | None:
    """Adds up the lines of timing.jsonl; None if there are none of goodput."""
    sessions: dict[float, list[Mapping[str, float]]] = {}
    for line in lines:
        if line.get("split") == GOODPUT and {"began", "time", *KINDS} <= line.keys():
            sessions.setdefault(line["began"], []).append(line)
    while len(sessions) > 1 and (last := [*sessions.values()][-1])[0]["step"] == last[-1]["step"]:
        sessions.popitem()  # nothing was left to train
    if not sessions:
        return None
    useful: list[tuple[float, float]] = []  # (step, seconds of the steps since the line before)
    for session in sessions.values():
        before = 0.0
        for line in session:
            while useful and useful[-1][0] > line["step"]:  # the run went back
                useful.pop()
            useful.append((line["step"], line["steps"] - before))
            before = line["steps"]
    ends = [session[-1] for session in sessions.values()]
    seconds = {kind: sum(end[kind] for end in ends) for kind in KINDS}
    counted = sum(seconds.values())
    total = max(ends[-1]["time"] - min(sessions), counted, 1e-9)  # clocks may be set back
    return Goodput(total, len(sessions), seconds, seconds["steps"] - sum(spent for _, spent in useful),
                   total - counted)
