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

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import RunFault, UserError
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


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    directory, flags = arguments.required_workdir(), arguments.flags
    if process_group.launched(os.environ):
        raise UserError("lmrep sweep is one process, and was started as several; start it in an array job with "
                        "--task and --tasks (see launch/slurm_sweep.sh)")
    if flags.grid is not None and flags.list is not None:
        raise UserError("--grid and --list are given; give one of them")

    from lmrep.experiment import settings
    from lmrep.sweeps.sweep import sweep

    config = f"{arguments.config_file}:{arguments.config_argument}" if arguments.config_file else None
    grid = flags.grid if flags.list is None else settings.read_list(flags.list)
    result = sweep(config, directory, grid=grid, seeds=flags.seeds, metric=flags.metric,
                   validation=flags.validation, task=flags.task, tasks=flags.tasks, retry=flags.retry,
                   train=not flags.show, report=flags.report, data_dir=flags.data_dir,
                   **dict(arguments.overrides))
    print(result, flush=True)
    return 0 if flags.show or not result.failed else RunFault.exit_code
