"""Logs a run: metrics, which are reproducible, timings, events for dashboards, and the progress line.

`metrics.jsonl` is a result: a run that is killed and resumed ends with the same lines as one that was never stopped,
and a run that cannot write it stops. All other outputs are optional: a failure is logged in one warning, and the run
continues without them.
"""

import importlib.util
import logging
import math
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partialmethod
from pathlib import Path
from typing import Annotated, Any, TypedDict

from lmrep.config.json_files import Count, Lines, numbers, parse, read_lines
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import write_bytes, write_text
from lmrep.core.messages import install_hint
from lmrep.core.progress import Screen, StatusLine, duration
from lmrep.metrics import Metric
from lmrep.storage.jsonl import JsonLines, append
from lmrep.training.config import LogConfig

METRICS = "metrics.jsonl"
FAULTS = "faults.jsonl"
TIMING = "timing.jsonl"


class Step(TypedDict):
    """The fields that every line of a log has: the step."""

    step: Count


class Line(Step):
    """A line of metrics.jsonl; its other fields are metrics."""

    split: str


MetricsLine = Annotated[Line, numbers("split")]
TimingLine = Annotated[Step, numbers("split", measured=False)]

log = logging.getLogger(__name__)


class MetricsLog:
    """The files `metrics.jsonl`, `timing.jsonl` and `faults.jsonl` of a run, and the `writers` of the same numbers.

    One process of a run writes them, after calling `resume`. Write and flush all lines up to a checkpoint's step before
    saving that checkpoint; `resume` at that step then keeps exactly those lines.
    """

    def __init__(self, workdir: str | os.PathLike, writers: Iterable["OptionalWriter"] = ()):
        self._path, self._faults = Path(workdir) / METRICS, Path(workdir) / FAULTS
        self._metrics: JsonLines | None = None
        self._timing = OptionalWriter(TIMING, lambda: JsonLines(Path(workdir) / TIMING))
        self._writers = list(writers)

    def resume(self, step: int | None) -> None:
        """Opens the log for a run that continues after `step` (None: starts), and removes all later lines. Raises
        RunFault if `metrics.jsonl` cannot be read or written."""
        try:
            lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
            steps = [_step_of(line) for line in lines]
            damaged = [number for number, line_step in enumerate(steps, 1) if line_step is None]
            if lines and not lines[-1].endswith(b"\n"):  # truncated when its run was killed
                log.info("the last line of %s is incomplete and dropped, because its run was killed", self._path)
                damaged = [number for number in damaged if number < len(lines)]
            if damaged:
                others = f", and {len(damaged) - 1} more" if damaged[1:] else ""
                log.warning("line %d of %s is damaged and dropped%s", damaged[0], self._path, others)
            last = -1 if step is None else step
            retained = [line for line, line_step in zip(lines, steps, strict=True)
                        if line_step is not None and line_step <= last]
            if retained != lines:
                write_bytes(self._path, b"".join(retained))
            self._metrics = JsonLines(self._path)
        except OSError as error:
            raise RunFault(f"{self._path} cannot be used: {error.strerror}") from error

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Appends one line: `step`, `split` ("train", "validation", ...), then `values` sorted by name. Floats are
        written so that reading restores the same bits, and non-finite ones as the strings "nan", "inf" and "-inf".
        Raises RunFault if the line cannot be written."""
        self._write(lambda: self._metrics.write(_record(step, split, values)))
        for writer in self._writers:
            writer.write(step, split, values)

    def rewind(self, step: int | None) -> None:
        """Removes every line after `step`, or all lines if it is None, because the run goes back there."""
        self._write(lambda: self._metrics.close())
        self.resume(step)
        for writer in self._writers:
            writer.rewind(step or 0)

    def fault(self, record: dict) -> None:
        """Appends a line to `faults.jsonl`, and creates the file if needed. Raises RunFault if that fails."""
        append(self._faults, record)

    def keep_faults(self, number: int) -> None:
        """Removes all but the first `number` lines of `faults.jsonl`: the steps of the others will be repeated."""
        lines = self._faults.read_bytes().splitlines(keepends=True) if self._faults.exists() else []
        if len(lines) > number:
            write_bytes(self._faults, b"".join(lines[:number]))

    def timing(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Appends one line to `timing.jsonl`, with the fields of `write` and `time`, the Unix time in seconds."""
        self._timing.write(_record(step, split, {**values, "time": time.time()}))
        for writer in self._writers:
            writer.write(step, split, values)

    def flush(self) -> None:
        """Waits until all lines are on the disk. Raises RunFault if that fails."""
        self._write(lambda: self._metrics.flush())
        for writer in (self._timing, *self._writers):
            writer.flush()

    def close(self) -> None:
        """Flushes and closes the files and the writers."""
        if self._metrics is not None:
            self.flush()
            self._metrics.close()
        for writer in (self._timing, *self._writers):
            writer.close()

    def _write(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise RunFault(f"{self._path} cannot be written: {error.strerror}; fix that and resume") from error


class OptionalWriter:
    """A writer whose failure does not stop the run: the first one is logged as a warning, and switches the writer off.
    `make` creates the writer at the first `write`. A writer has `write`, and may have `rewind`, which announces that
    the next lines are for the steps after `step` again, `flush` and `close`."""

    def __init__(self, name: str, make: Callable[[], Any]):
        self._name, self._make = name, make
        self._writer: Any = None
        self._failed = False

    def _call(self, method: str, *args) -> None:
        if self._failed or (self._writer is None and method != "write"):
            return
        try:
            self._writer = self._writer or self._make()
            getattr(self._writer, method, lambda *_: None)(*args)
        except (Exception, SystemExit) as error:  # some dashboard libraries exit
            self._failed = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("%s failed and is switched off; the run continues (%s)", self._name, reason)

    write, rewind = partialmethod(_call, "write"), partialmethod(_call, "rewind")
    flush, close = partialmethod(_call, "flush"), partialmethod(_call, "close")


def writers(
    workdir: str | os.PathLike, config: LogConfig, experiment: dict, resumed: int | None = None
) -> list[OptionalWriter]:
    """Makes the writers that a config asks for. `experiment` has all fields of the run's config, and `resumed` is the
    step that it continues after. Raises UserError if a package is not installed."""
    made = []
    if config.tensorboard:
        made.append(OptionalWriter("TensorBoard", lambda: _TensorBoard(Path(workdir) / "tensorboard", resumed)))
    if config.wandb:
        if importlib.util.find_spec("wandb") is None:
            raise UserError(f"logging to Weights & Biases needs its package: {install_hint('wandb')}")
        made.append(OptionalWriter("Weights & Biases", lambda: _WeightsAndBiases(
            Path(workdir), config.wandb, experiment)))
    return made


class _TensorBoard:
    """Events under `directory`, tagged `split/name`. Earlier ones after the step `resumed` are hidden."""

    # tensorboardX's SummaryWriter passes events to a thread through a queue of ten: once that thread has died because
    # the disk is full, the next event blocks forever. Its file writer, used here, fails where it is called.
    def __init__(self, directory: Path, resumed: int | None):
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        directory.mkdir(parents=True, exist_ok=True)
        self._event, self._scalar = event_pb2.Event, summary.scalar
        # The file name has the time in seconds; a run that is resumed within a second must not overwrite the file.
        self._file = event_file_writer.EventsWriter(str(directory / "events"), f".{uuid.uuid4().hex[:8]}")
        self._start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        if resumed is not None:
            self.rewind(resumed)

    def rewind(self, step: int) -> None:
        self._file.write_event(self._event(step=step + 1, wall_time=time.time(), session_log=self._start))

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            summary = self._scalar(f"{split}/{name}", float(value))
            self._file.write_event(self._event(step=step, wall_time=time.time(), summary=summary))
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _WeightsAndBiases:  # a resumed run continues; wandb ignores steps that it already has
    def __init__(self, workdir: Path, project: str, config: dict):
        import wandb

        path = workdir / "wandb-id"
        if not path.exists():
            write_text(path, uuid.uuid4().hex[:8])
        self._run = wandb.init(dir=workdir, project=project, config=config, id=path.read_text(), resume="allow")

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def format_metrics(
    values: Mapping[str, float], metrics: Mapping[str, Metric], headlines: bool = False
) -> dict[str, str]:
    """Formats each value in its metric's format; with `headlines`, only those of headline metrics."""
    return {name: format(value, metrics[name].format if name in metrics else ".4g") for name, value in values.items()
            if not headlines or (name in metrics and metrics[name].headline)}


class Progress:
    """The progress line: updated in place on a terminal, a new line every `every` seconds elsewhere. Use it as a
    context manager; other output appears above the line.

    Args:
      total: the last step of the run.
      screen: the screen; standard error if None.
      every: seconds between plain lines.
      clock: a monotonic clock, in seconds.
    """

    def __init__(self, total: int, screen: Screen | None = None, every: float = 10.0,
                 clock: Callable[[], float] = time.monotonic):
        self._total, self._clock, screen = total, clock, screen or Screen()
        self._every = 0.1 if screen.is_terminal else every
        self._line = OptionalWriter("the progress line", lambda: StatusLine(screen))
        self._text, self._printed_at = "", -math.inf
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)  # (time, step), for the rate

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._line.write(self._text)
        self._line.close()

    def show(self, text: str) -> None:
        """Shows a text until the next `update`, for example while a program is compiled."""
        self._line.write(text)

    def update(self, step: int, metrics: Mapping[str, str], tokens_per_second: float | None = None,
               utilisation: float | None = None) -> None:
        """Shows that `step` has ended. `metrics` are texts by name, as `format_metrics` returns them; `utilisation` is
        a fraction of the devices' peak rate; None if unknown."""
        now = self._clock()
        self._recent.append((now, step))
        began, first = self._recent[0]
        fields = [f"step {step:,}/{self._total:,}", *(f"{name} {text}" for name, text in metrics.items())]
        if tokens_per_second is not None:
            fields.append(f"{tokens_per_second:,.0f} tokens/s")
        if step > first:
            fields.append(f"{duration((self._total - step) * (now - began) / (step - first))} left")
        if utilisation is not None:
            fields.append(f"utilisation {utilisation:.0%}")
        self._text = "  ".join(fields)
        if now >= self._printed_at + self._every:
            self._printed_at = now
            self._line.write(self._text)


def validations(workdir: Path) -> list[Line]:
    """Reads the validation lines of metrics.jsonl, as `lines` does."""
    return lines(workdir, "validation")


def lines(workdir: Path, split: str) -> list[Line]:
    """Reads the lines of a split in metrics.jsonl; skips damaged lines with a warning. Non-finite numbers are strings,
    such as "nan". Raises UserError if the file cannot be read."""
    content = read_lines(MetricsLine, workdir / METRICS) or Lines([], [])
    if content.damaged:
        log.warning("%s: %s", workdir / METRICS, content.note)
    return [line for line in content.records if line["split"] == split]


def _record(step: int, split: str, values: Mapping[str, float]) -> dict:
    if clash := values.keys() & {"step", "split"}:
        raise ValueError(f"a metric cannot be named {', '.join(sorted(clash))}")
    return {"step": int(step), "split": split, **{name: _plain(values[name]) for name in sorted(values)}}


def _plain(value: Any) -> float | int | str:
    value = value.item() if hasattr(value, "item") else value
    return value if math.isfinite(value) else str(float(value))


def _step_of(line: bytes) -> int | None:
    """Reads the step of a line of `metrics.jsonl`; returns None if the line is damaged."""
    try:
        return parse(Step, line)["step"] if line.endswith(b"\n") else None
    except UserError:
        return None
