"""Trains the runs of a sweep one after the other, and prints a line for each."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten

from lmrep.analysis.sweep import FAILED, FINISHED, Ending, Result, ending_file, log_file, result
from lmrep.core.errors import Stopped
from lmrep.core.files import write_json
from lmrep.core.progress import StatusLine, duration
from lmrep.experiment.sweep import Run, SweepSpec, command
from lmrep.storage.workdir import holder
from lmrep.sweeps import process


def train(directory: Path, spec: SweepSpec, runs: Sequence[Run], retry: bool = False) -> None:
    """Trains the runs that are not finished, except those that another process is training.

    Raises:
      Stopped: by Ctrl-C or SIGTERM, or because a run was stopped.
    """
    states = [result(directory, spec, run).state for run in runs]
    skipped = {FINISHED} if retry else {FINISHED, FAILED}
    todo = [run for run, state in zip(runs, states, strict=True) if state not in skipped]
    done, failed, seconds = len(runs) - len(todo), 0 if retry else states.count(FAILED), []
    if done:
        print(f"{done} of {len(runs)} runs are done" + (f", {failed} of them failed" if failed else ""), flush=True)
    try:
        with StatusLine() as status:
            for number, run in enumerate(todo, 1):
                where = f"[{done + number}/{len(runs)}] {run.name}"
                # A terminal shows the last output of the run; elsewhere a run has one line, at its end.
                show = (lambda line, where=where: status.write(f"{where}: {line}")) if status.every < 1 else (
                    lambda line: None)
                trained = _train(directory, spec, run, show)
                if trained is None:
                    print(f"{where}: another process has it", flush=True)
                    continue
                seconds.append(trained.ending.seconds)
                remaining = statistics.fmean(seconds) * (len(todo) - number)
                time_left = f"; about {duration(remaining)} left" if number < len(todo) else ""
                print(f"{where}: {describe(directory, spec, trained)}{time_left}", flush=True)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = process.INTERRUPTED if isinstance(stop, KeyboardInterrupt) else process.TERMINATED
        finished = sum(result(directory, spec, run).state == FINISHED for run in runs)
        raise Stopped(f"stopped after {finished} of {len(runs)} runs; continue with the same command, or with: "
                      f"{command(directory, spec)}", code) from None


def _train(directory: Path, spec: SweepSpec, run: Run, show: Callable[[str], None]) -> Result | None:
    """Trains a run and returns its result; None if another process is training it."""
    with process.claimed(log_file(directory, run)) as log:
        if log is None or holder(directory / run.name):
            return None
        before = result(directory, spec, run)
        if before.state == FINISHED:  # meanwhile, by another process
            return before._replace(ending=before.ending or Ending(0, 0.0))
        ending_file(directory, run).unlink(missing_ok=True)
        words = ["train", *spec.flags(run), f"--workdir={directory / run.name}"]
        ending, stop = process.run(words, log, show)
        write_json(ending_file(directory, run), ending._asdict())
        if stop:
            raise KeyboardInterrupt if stop == process.INTERRUPTED else SystemExit
        return result(directory, spec, run)


def describe(directory: Path, spec: SweepSpec, trained: Result) -> str:
    """Describes the score of a run, or why it failed."""
    ending, metric = trained.ending, spec.metrics[spec.metric]
    if ending.exit_code:
        return (f"failed after {duration(ending.seconds)} with exit code {ending.exit_code}: "
                f"{shorten(ending.message, 160)} (see {log_file(directory, trained.run)})")
    figure = "" if trained.value is None else f"{spec.metric} {trained.value:{metric.format}}, "
    return figure + (f"failed: {trained.reason}, " if trained.reason else "") + duration(ending.seconds)
