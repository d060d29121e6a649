"""Trains every setting of a grid or a list with every seed, and compares the settings.

    lmrep sweep --config=experiments/bert.py:size=tiny --workdir=sweeps/rates --seeds=0-2 \\
        --grid='optimizer.learning_rate=1e-4,3e-4;batch_size=16,32'

A value in brackets or quotes may have commas: optimizer.betas=(0.9,0.98),(0.9,0.999). A field that begins with a colon
is a choice of the config file, as in --grid=':size=tiny,mini'. --grid=bert, bert_small, roberta or electra is the
grid that the paper searched when fine-tuning, and --grid=paper what get_sweep of the config file returns.
--grid=auto searches the learning rate: a ninth, a third, 1, 3 and 9 times the config's, and then, as long as the best
is the highest or the lowest, three times or a third of it, up to nine rates.
--list=FILE reads one setting per line, as "optimizer.learning_rate=1e-4 batch_size=16". Without either, the config
itself is trained with every seed. All configs are checked before the first run starts.

Each run is an `lmrep train` in a process of its own, in WORKDIR/SETTING/seed=N; its output is in seed=N.log. The runs
share compiled programs (see --compilation_cache). The same command continues: finished runs are kept, interrupted ones
resumed, failed ones trained again with --retry only. It may add settings and seeds. lmrep sweep --workdir=WORKDIR
continues too, with --config where the config file does not come with lmrep. Several processes can work on one sweep
at the same time; --task=I --tasks=N takes every Nth run, for array jobs (see launch/slurm_sweep.sh). After Ctrl-C the
current run is saved.

Settings are compared by the validation metric that checkpoint.best names, at the last validation of each run or, with
checkpoint.load=best, at its best one. The results are in results.tsv, results.json and report.html. A run has failed if
a fault stopped it, or if it ends at or below the baseline of the trivial predictor (such as the most frequent class),
where that is measured. The exit code is 3 if no run of this process finished, 130 or 143 if it was stopped."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag, at_least
from lmrep.config.record import Bounds, suggestion
from lmrep.core.errors import RunFault, UserError
from lmrep.core.host import default_data_dir
from lmrep.core.paths import as_path
from lmrep.distributed import process_group

FLAGS = {
    "grid": Flag(None, "FIELD=VALUE,VALUE;FIELD=VALUE,...: every combination; the name of a published grid; or auto: "
                 "learning rates around the config's", str),
    "list": Flag(None, "a file with one setting per line: FIELD=VALUE FIELD=VALUE ...", as_path),
    "seeds": Flag(None, "the seeds of every setting, as 0-4 or 0,1,7 (default: that of the config)", str),
    "task": Flag(0, "this process takes the runs I, I + N, I + 2N, ... of --tasks=N", bounds=at_least(0)),
    "tasks": Flag(1, "the number of processes that divide the runs", bounds=at_least(1)),
    "retry": Flag(False, "train failed runs again, from their last checkpoint"),
    "show": Flag(False, "show the results so far, and train nothing"),
    "metric": Flag("", "the validation metric to compare by (default: checkpoint.best)"),
    "validation": Flag("auto", "the validation of a run that counts: last; best by the metric; or auto: that of the "
                       "checkpoint that checkpoint.load names", bounds=Bounds(choices=("auto", "last", "best"))),
    "report": Flag(True, "write report.html once all runs are done"),
    "data_dir": DATA_DIR,
}
PAPER = "paper"
LOCK_SECONDS = 60.0  # another task writes the plan in less; a lock that is held longer is a run's
MAX_REASONS, MAX_WIDTH = 10, 160  # lines about failed runs, and characters of each


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    directory, flags = Path(arguments.required_workdir()), arguments.flags
    if flags.task >= flags.tasks:
        raise UserError(f"--task is {flags.task} of --tasks={flags.tasks}; tasks are numbered from 0 to --tasks - 1")
    if process_group.launched(os.environ):
        raise UserError("lmrep sweep is one process, and was started as several; start it in an array job with "
                        "--task and --tasks (see launch/slurm_sweep.sh)")

    from lmrep.analysis import sweep as analysis
    from lmrep.cli.sweep_runs import train
    from lmrep.experiment import checks, settings, sweep
    from lmrep.storage.workdir import CONFIG, LOCK, exclusive

    if not flags.show:
        checks.check_writable(directory)
    previous = sweep.read(directory)
    if previous is None and (directory / CONFIG).exists():
        raise UserError(f"{directory} holds a run, not a sweep; give another --workdir")
    if flags.show and previous is None:
        raise UserError(f"there is no sweep in {directory}; correct --workdir, or start one with --config")
    plan = previous if flags.show else _plan(arguments, previous)
    metric = flags.metric or plan.metric
    if metric not in plan.metrics:
        raise UserError(f"--metric is {metric!r}; expected one of {', '.join(plan.metrics)}"
                        f"{suggestion(metric, plan.metrics)}")
    best, retry = {"auto": None, "last": False, "best": True}[flags.validation], flags.retry
    while True:
        if not flags.show:
            with exclusive(directory / LOCK, LOCK_SECONDS):  # other tasks write the plan too
                if previous := sweep.read(directory):
                    plan = sweep.extend(previous, plan)
                sweep.write(directory, plan)
        runs = plan.runs()
        if not flags.show:
            train(directory, plan, runs[flags.task :: flags.tasks], retry)
        results = [analysis.result(directory, plan, run, metric, best) for run in runs]
        summaries = analysis.summarize(plan, results)
        leader = analysis.leading(summaries, plan.metrics[metric])
        searching = flags.grid == settings.AUTO and flags.tasks == 1 and not flags.show and leader and not (
            {analysis.RUNNING, analysis.UNFINISHED} & {result.state for result in results})
        rate = settings.next_rate(plan.settings, [
            summary.setting for summary in summaries if summary.mean == leader.mean]) if searching else None
        if rate is None:
            break
        print(f"the best learning rate so far is the highest or the lowest: trying {rate} too", file=sys.stderr,
              flush=True)
        retry = False
        plan = _make(plan.file, plan.argument, plan.overrides, [
            *(setting.fields for setting in plan.settings), ((settings.RATE, rate),)], plan.seeds, plan.data_dir)
    print(_results(directory, plan, summaries, metric), flush=True)
    analysis.write(directory, summaries, metric, plan.metrics[metric])
    if flags.show:
        return 0
    if flags.report and not {analysis.RUNNING, analysis.UNFINISHED} & {result.state for result in results}:
        _report(directory, summaries, plan.metrics[metric], Path(plan.data_dir or default_data_dir()))
    states = {result.state for result in results[flags.task :: flags.tasks]}
    return 0 if not states or states & {analysis.FINISHED, analysis.RUNNING} else RunFault.exit_code


def _plan(arguments: Arguments, previous: Any) -> Any:
    """Makes the plan that the flags describe. What they leave open is taken from the previous plan, if any."""
    from lmrep.config.loading import load_sweep
    from lmrep.experiment import page_files, settings, sweep
    from lmrep.experiment.fine_tuning import GRIDS
    from lmrep.interop.checkpoint_config import load_config

    flags = arguments.flags
    if arguments.config_file:
        file, argument, overrides = arguments.config_file, arguments.config_argument, arguments.overrides
        file = str(Path(file).absolute()) if Path(file).exists() else file
        if previous and (file, argument) == previous[:2] and flags.grid is flags.list is None:
            overrides = tuple((dict(previous.overrides) | dict(overrides)).items())
    elif previous:
        if not page_files.is_page(previous.file):  # a config file is code, and may be another user's
            raise UserError(f"the sweep in {arguments.workdir} is of {previous.file}, which does not come with lmrep; "
                            f"to run that file, name it: {sweep.command(arguments.workdir, previous)}")
        file, argument = previous.file, previous.argument
        overrides = tuple((dict(previous.overrides) | dict(arguments.overrides)).items())
    else:
        raise UserError(f"there is no sweep in {arguments.workdir}; correct --workdir, or start one with --config, for "
                        "example --config=experiments/quickstart.py")
    seeds = settings.parse_seeds(flags.seeds) if flags.seeds is not None else previous.seeds if previous else ()
    if flags.grid is not None and flags.list is not None:
        raise UserError("--grid and --list are given; give one of them")
    if flags.list is not None:
        fields = settings.read_list(flags.list)
    elif flags.grid == PAPER:
        fields = settings.from_grid(load_sweep(page_files.find(file), argument), file)
    elif flags.grid == settings.AUTO:
        earlier = [setting.fields for setting in previous.settings] if previous else []
        rate = load_config(file, argument, overrides).optimizer.learning_rate
        fields = earlier + [setting for setting in settings.rates_around(rate) if setting not in earlier]
        overrides = tuple(pair for pair in overrides if pair[0] != settings.RATE)
    elif flags.grid in GRIDS:
        fields = settings.from_grid(GRIDS[flags.grid], flags.grid)
    elif flags.grid is not None:
        fields = settings.parse_grid(flags.grid)
    elif previous:
        fields = [setting.fields for setting in previous.settings]
    elif seeds:
        fields = [()]
    else:
        raise UserError("lmrep sweep needs settings or seeds: --grid='FIELD=VALUE,VALUE;FIELD=VALUE,...', --list=FILE "
                        "or --seeds=0-4")
    return _make(file, argument, overrides, fields, seeds, flags.data_dir or (previous.data_dir if previous else ""))


def _make(file: str, *options: Any) -> Any:
    """Makes a plan of a config file; `options` are the other arguments of `sweep.make`."""
    from lmrep.experiment import sweep
    from lmrep.interop.checkpoint_config import load_config

    return sweep.make(partial(load_config, file), file, *options)


def _results(directory: Path, plan: Any, summaries: Sequence[Any], name: str) -> str:
    """Formats the results: the table, the best setting, the runs that failed, and how to go on."""
    from lmrep.analysis import sweep as analysis
    from lmrep.experiment import sweep

    metric, results = plan.metrics[name], [result for summary in summaries for result in summary.results]
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"\n{metric.title} ({name}) on the validation split, {direction} is better:\n",
             analysis.table(summaries, metric), ""]
    if leader := analysis.leading(summaries, metric):
        near = [summary.setting.name for summary in analysis.within_noise(leader, summaries)]
        lines.append(f"best on the validation split: {leader.setting.name}" if not near else
                     f"no setting is best: {leader.setting.name} leads on the validation split, within the noise of "
                     f"{shorten(', '.join(near), MAX_WIDTH)}; more seeds (--seeds=0-4) may tell them apart")
    if fields := analysis.incomparable(plan):
        lines.append(f"settings differ in {', '.join(fields)}, by which validation examples or targets can differ; "
                     "then these figures cannot be compared")
    reasons = [f"failed: {result.run.name}: {shorten(result.reason, MAX_WIDTH)}" for result in results if result.reason]
    lines += reasons[:MAX_REASONS]
    if more := reasons[MAX_REASONS:]:
        lines.append(f"and {len(more)} more: see {directory / analysis.RECORD}")
    command = sweep.command(directory, plan)
    for state, advice in ((analysis.FAILED, f"to train again: {command} --retry"),
                          (analysis.RUNNING, "by other processes"), (analysis.UNFINISHED, f"to continue: {command}")):
        if count := sum(result.state == state for result in results):
            lines.append(f"{state}: {count} of {len(results)} runs; {advice}")
    return "\n".join([*lines, str(directory / analysis.TABLE)])


def _report(directory: Path, summaries: Sequence[Any], metric: Any, data_dir: Path) -> None:
    """Writes report.html and prints its path. An error is only a warning, since all runs are done."""
    from lmrep.analysis import report
    from lmrep.analysis import sweep as analysis

    runs = analysis.reported(summaries, metric)
    finished = sum(summary.count(analysis.FINISHED) for summary in summaries)
    if not runs:
        return
    selected = f"the {len(runs)} runs of the best settings" if len(runs) < finished else f"{len(runs)} runs"
    print(f"writing a report of {selected}", file=sys.stderr, flush=True)
    try:
        print(report.write([directory / run.name for run in runs], directory / report.NAME, data_dir=data_dir))
    except Exception as error:
        print(f"warning: the report could not be written: {error}", file=sys.stderr)
