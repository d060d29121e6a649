"""Traces a few steps on the devices and the host, for Perfetto, XProf or TensorBoard."""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

import jax

from lmrep.training.metrics_log import Progress

log = logging.getLogger(__name__)

WARM_UP = 5  # steps of this process before the trace: compilation, the first batches


class Profile:
    """A progress line that also traces `steps` steps, after `WARM_UP` others. Use it as a context manager.

    The loop calls `update` when a step's metrics are read, which is when the step has ended.

    Args:
      progress: the progress line that `show` and `update` call.
      directory: the directory of traces, which have separate subdirectories.
      steps: the number of steps to trace.
      resumed: the last step before this process started.
    """

    def __init__(self, progress: Progress, directory: Path, steps: int, resumed: int):
        self._progress, self._directory = progress, directory
        self._first, self._last = resumed + WARM_UP, resumed + WARM_UP + steps
        self._tracing, self._step = contextlib.ExitStack(), resumed

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_) -> None:
        self._tracing.close()
        if self._step < self._first:
            log.warning("no profile: tracing begins after step %s, and the last step was %s",
                        f"{self._first:,}", f"{self._step:,}")

    def show(self, text: str) -> None:
        """Calls `Progress.show`."""
        self._progress.show(text)

    def update(self, step: int, metrics: Mapping[str, str], *rates: float | None) -> None:
        """Calls `Progress.update`, and starts or ends the trace."""
        self._progress.update(step, metrics, *rates)
        self._step = step
        if step == self._first:
            jax.profiler.start_trace(self._directory)
            self._tracing.callback(self._end)
        elif step == self._last:
            self._tracing.close()

    def _end(self) -> None:
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # for example a full disk, which should not stop the run
            log.warning("the profile could not be written to %s: %s", self._directory, error)
            return
        traces = sorted(self._directory.rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
        log.info("profile from step %s on: %s\n  open this file at https://ui.perfetto.dev, or "
                 "pip install xprof; xprof --logdir=%s", f"{self._first + 1:,}",
                 traces[-1] if traces else self._directory, self._directory)
