"""Trains the runs of a sweep, and compares its settings."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from lmrep.analysis import sweep as analysis
from lmrep.analysis.sweep import Result, Summary
from lmrep.config.loading import load_sweep
from lmrep.config.record import choose, suggestion
from lmrep.core.errors import RunFault, UserError
from lmrep.core.host import default_data_dir
from lmrep.core.paths import as_path
from lmrep.experiment import checks, page_files, settings
from lmrep.experiment import sweep as specs
from lmrep.experiment.fine_tuning import grids
from lmrep.experiment.settings import Fields
from lmrep.experiment.sweep import SweepSpec
from lmrep.interop.checkpoint_config import load_config
from lmrep.storage.workdir import CONFIG, LOCK, exclusive
from lmrep.sweeps import runs

PAPER = "paper"
VALIDATIONS = {"auto": None, "last": False, "best": True}
LOCK_SECONDS = 60.0  # another task writes the spec in less; a lock that is held longer is a run's
MAX_REASONS, MAX_WIDTH = 10, 160  # lines about failed runs, and characters of each


class Sweep(NamedTuple):
    """The results of a sweep; `print` shows them as a table."""

    directory: Path
    spec: SweepSpec
    metric: str  # that settings are compared by
    summaries: list[Summary]  # of each setting, the best first
    failed: bool  # whether runs were to be trained here, and none finished
    report: Path | None = None  # the page, if all runs are done

    @property
    def best(self) -> Summary | None:
        """The setting with the best mean; None before a run has finished."""
        return analysis.leading(self.summaries, self.spec.metrics[self.metric])

    def __str__(self) -> str:
        text = _describe(self)
        return f"{text}\n{self.report}" if self.report else text


def sweep(
    config: str | os.PathLike | None, directory: str | os.PathLike, *,
    grid: str | Mapping[str, Sequence[Any]] | Sequence[Any] | None = None, seeds: str | Sequence[int] | None = None,
    metric: str = "", validation: str = "auto", task: int = 0, tasks: int = 1, retry: bool = False, train: bool = True,
    report: bool = True, data_dir: str | os.PathLike = "", **overrides: Any,
) -> Sweep:
    """Trains every setting of a grid with every seed, and compares the settings, as `lmrep sweep` does.

    Args:
      config: the config file, or the name of one of the package, with choices after a colon; None continues the sweep
        in `directory`. The runs are processes of their own, which read it, so that it is no config in memory.
      directory: of the sweep; its runs are in SETTING/seed=N. The same call continues, and may add settings and seeds.
      grid: {field: values} for all combinations; a list of {field: value} for single settings; or text as for --grid:
        "field=value,value;field=value", "auto", "paper" or the name of a published grid.
      seeds: of every setting: numbers, or text such as "0-4"; by default the seed of the config.
      metric: the validation metric to compare by; by default that of `checkpoint.best`.
      validation: of a run that counts: "last", "best", or "auto", that of the checkpoint that is loaded.
      task, tasks: this process trains every run whose number is `task` modulo `tasks`.
      retry: train failed runs again.
      train: False reads the results so far, and trains nothing.
      report: write report.html once all runs are done.
      data_dir: the directory of token stores.
      **overrides: fields of the config that all settings share.

    Raises:
      UserError: a config is invalid, the directory holds another sweep, or there is nothing to train.
      RunFault: the results cannot be written; they are printed.
      Stopped: by SIGTERM or Ctrl-C, with everything saved.
    """
    directory = Path(as_path(directory))
    if task >= tasks:
        raise UserError(f"--task is {task} of --tasks={tasks}; tasks are numbered from 0 to --tasks - 1")
    choose(VALIDATIONS, validation, "validation")
    previous = _previous(directory, train)
    pairs = tuple((path, value if isinstance(value, str) else repr(value)) for path, value in overrides.items())
    spec = _spec(config, directory, previous, grid, seeds, as_path(data_dir), pairs) if train else previous
    metric = metric or spec.metric
    if metric not in spec.metrics:
        raise UserError(f"--metric is {metric!r}; expected one of {', '.join(spec.metrics)}"
                        f"{suggestion(metric, spec.metrics)}")
    searching = grid == settings.AUTO and tasks == 1 and train
    while True:
        if train:
            with exclusive(directory / LOCK, LOCK_SECONDS):  # other tasks write the spec too
                if previous := specs.read(directory):
                    spec = specs.extend(previous, spec)
                specs.write(directory, spec)
            runs.train(directory, spec, spec.runs()[task::tasks], retry)
        results = [analysis.result(directory, spec, run, metric, VALIDATIONS[validation]) for run in spec.runs()]
        summaries = analysis.summarize(spec, results)
        leader, rate = analysis.leading(summaries, spec.metrics[metric]), None
        if searching and leader and not _open(results):
            rate = settings.next_rate(spec.settings, [
                summary.setting for summary in summaries if summary.mean == leader.mean])
        if rate is None:
            break
        print(f"the best learning rate so far is the highest or the lowest: trying {rate} too", file=sys.stderr,
              flush=True)
        retry = False
        spec = _make(spec.file, spec.argument, spec.overrides, [
            *(setting.fields for setting in spec.settings), ((settings.RATE, rate),)], spec.seeds, spec.data_dir)
    states = {result.state for result in results[task::tasks]}
    result = Sweep(directory, spec, metric, summaries, bool(states) and not states & {
        analysis.FINISHED, analysis.RUNNING})
    try:
        analysis.write(directory, summaries, metric, spec.metrics[metric])
    except RunFault:
        print(result, flush=True)  # it is known, and cannot be kept
        raise
    return result._replace(report=_report(result)) if train and report and not _open(results) else result


def _previous(directory: Path, train: bool) -> SweepSpec | None:
    """Reads the spec of a sweep; None if it is new. Raises UserError if it cannot be trained, or shown, there."""
    if train:
        checks.check_writable(directory)
    previous = specs.read(directory)
    if previous is None and (directory / CONFIG).exists():
        raise UserError(f"{directory} holds a run, not a sweep; give another --workdir")
    if not train and previous is None:
        raise UserError(f"there is no sweep in {directory}; correct --workdir, or start one with --config")
    return previous


def _open(results: Sequence[Result]) -> bool:
    """Returns whether runs are still to be trained."""
    return bool({analysis.RUNNING, analysis.UNFINISHED} & {result.state for result in results})


def _spec(
    config: str | os.PathLike | None, directory: Path, previous: SweepSpec | None, grid: Any,
    seeds: str | Sequence[int] | None, data_dir: str, overrides: Fields,
) -> SweepSpec:
    """Makes the spec that the arguments describe. What they leave open is taken from the previous spec, if any."""
    if config is not None and not isinstance(config, str | os.PathLike):
        raise UserError("config is a config in memory, and the runs of a sweep are processes that read a config file; "
                        "give its name with choices, such as 'bert.py:size=tiny', and fields as keywords, or write a "
                        "file whose get_config returns this config")
    if config is not None:
        file, _, argument = as_path(config).partition(":")
        file = str(Path(file).absolute()) if Path(file).exists() else file
        if previous and (file, argument) == previous[:2] and grid is None:
            overrides = tuple((dict(previous.overrides) | dict(overrides)).items())
    elif previous:
        if not page_files.is_page(previous.file):  # a config file is code, and may be another user's
            raise UserError(f"the sweep in {directory} is of {previous.file}, which does not come with lmrep; to run "
                            f"that file, name it: {specs.command(directory, previous)}")
        file, argument = previous.file, previous.argument
        overrides = tuple((dict(previous.overrides) | dict(overrides)).items())
    else:
        raise UserError(f"there is no sweep in {directory}; correct --workdir, or start one with --config, for example "
                        "--config=experiments/quickstart.py")
    if seeds is not None:
        seeds = settings.parse_seeds(seeds if isinstance(seeds, str) else ",".join(map(str, seeds)))
    else:
        seeds = previous.seeds if previous else ()
    if grid == PAPER:
        fields = settings.from_grid(load_sweep(page_files.find(file), argument), file)
    elif grid == settings.AUTO:
        earlier = [setting.fields for setting in previous.settings] if previous else []
        rate = load_config(file, argument, overrides).optimizer.learning_rate
        around = [((settings.RATE, f"{rate * 3.0**power:.3g}"),) for power in range(-2, 3)]
        fields = earlier + [setting for setting in around if setting not in earlier]
        overrides = tuple(pair for pair in overrides if pair[0] != settings.RATE)
    elif isinstance(grid, str):
        fields = settings.from_grid(grids()[grid], grid) if grid in grids() else settings.parse_grid(grid)
    elif grid is not None:
        parsed = isinstance(grid, list) and all(isinstance(setting, tuple) for setting in grid)  # of --list
        fields = grid if parsed else settings.from_grid(grid, "grid")
    elif previous:
        fields = [setting.fields for setting in previous.settings]
    elif seeds:
        fields = [()]
    else:
        raise UserError("lmrep sweep needs settings or seeds: --grid='FIELD=VALUE,VALUE;FIELD=VALUE,...', --list=FILE "
                        "or --seeds=0-4")
    return _make(file, argument, overrides, fields, seeds, data_dir or (previous.data_dir if previous else ""))


def _make(file: str, *options: Any) -> SweepSpec:
    """Makes the spec of a sweep from a config file; `options` are the other arguments of `specs.make`."""
    return specs.make(partial(load_config, file), file, *options)


def _describe(sweep: Sweep) -> str:
    """Formats the results: the table, the best setting, the runs that failed, and how to go on."""
    directory, spec, name, summaries, *_ = sweep
    metric, results = spec.metrics[name], [result for summary in summaries for result in summary.results]
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"\n{metric.title} ({name}) on the validation split, {direction} is better:\n",
             analysis.table(summaries, metric), ""]
    if leader := analysis.leading(summaries, metric):
        near = analysis.within_noise(leader, summaries)
        noisy = [summary.setting.name for summary in near if not analysis.single_run(leader, summary)]
        noise = f", within the noise of {shorten(', '.join(noisy), MAX_WIDTH)}" if noisy else ""
        unknown = "; the noise between seeds is not known of settings with one run" if len(noisy) < len(near) else ""
        lines.append(f"best on the validation split: {leader.setting.name}" if not near else
                     f"no setting is best: {leader.setting.name} leads on the validation split{noise}{unknown}; more "
                     "seeds (--seeds=0-4) may tell them apart")
    if fields := analysis.incomparable(spec):
        lines.append(f"settings differ in {', '.join(fields)}, by which validation examples or targets can differ; "
                     "then these figures cannot be compared")
    reasons = [f"failed: {result.run.name}: {shorten(result.reason, MAX_WIDTH)}" for result in results if result.reason]
    lines += reasons[:MAX_REASONS]
    if more := reasons[MAX_REASONS:]:
        lines.append(f"and {len(more)} more: see {directory / analysis.RECORD}")
    command = specs.command(directory, spec)
    for state, advice in ((analysis.FAILED, f"to train again: {command} --retry"),
                          (analysis.RUNNING, "by other processes"), (analysis.UNFINISHED, f"to continue: {command}")):
        if count := sum(result.state == state for result in results):
            lines.append(f"{state}: {count} of {len(results)} runs; {advice}")
    return "\n".join([*lines, str(directory / analysis.TABLE)])


def _report(sweep: Sweep) -> Path | None:
    """Writes report.html and returns its path. An error is only a warning, since all runs are done."""
    from lmrep.analysis import report  # slow to import

    directory, metric = sweep.directory, sweep.spec.metrics[sweep.metric]
    chosen = analysis.reported(sweep.summaries, metric)
    finished = sum(summary.count(analysis.FINISHED) for summary in sweep.summaries)
    if not chosen:
        return None
    selected = f"the {len(chosen)} runs of the best settings" if len(chosen) < finished else f"{len(chosen)} runs"
    print(f"writing a report of {selected}", file=sys.stderr, flush=True)
    try:
        return report.write([directory / run.name for run in chosen], directory / report.NAME,
                            data_dir=Path(sweep.spec.data_dir or default_data_dir()))
    except Exception as error:
        print(f"warning: the report could not be written: {error}", file=sys.stderr)
        return None
