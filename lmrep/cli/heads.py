"""Measures which attention heads a trained run needs (Michel et al., 2019).

Prints the importance of each head: the absolute value of its context vector times the gradient of the loss, summed
over the tokens of training examples. Then prints the change of the run's metric on validation data without each head,
and with one head of a layer alone, and the metric while heads are removed in steps of 5 % of all, the least important
first. A pretraining run is measured by its loss. Where layers share parameters (ALBERT), each layer has its own gates.

The result is also written to heads.json in the workdir, and shown by lmrep report. lmrep prune removes heads."""

import sys
from pathlib import Path

from lmrep.cli.arguments import DATA_DIR, STEP, Arguments, Flag, at_least
from lmrep.core.messages import aligned, show_messages

FLAGS = {
    "examples": Flag(1000, "the number of training examples for importance (of a task, at equal distances); 0: all",
                     bounds=at_least(0)),
    "validation_examples": Flag(0, "the number of examples that scores are measured on; 0: all", bounds=at_least(0)),
    "split": Flag("validation", "that scores are measured on: validation or test"),
    "normalize": Flag(True, "divide the importance of a layer's heads by its L2 norm"),
    "ablation": Flag(True, "measure the run without each head"),
    "single": Flag(True, "measure the run with one head of a layer alone, for each head"),
    "curve": Flag(True, "measure the run while heads are removed"),
    "exact": Flag(False, "compute importance again after each step of pruning"),
    "at_least": Flag(0, "heads that pruning leaves in every layer", bounds=at_least(0)),
    "random": Flag(0, "the number of random orders to remove heads in, for comparison", bounds=at_least(0, 1000)),
    "seed": Flag(0, "of the random orders", bounds=at_least(0)),
    "step": STEP,
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags

    from lmrep.analysis import head_importance, heads
    from lmrep.core import remote
    from lmrep.core.files import write_json
    from lmrep.inference.load import load
    from lmrep.storage import remote_workdir

    show_messages()
    loaded = load(workdir, arguments.step)
    gated = head_importance.gated(loaded, flags.examples, flags.validation_examples, flags.split, flags.normalize,
                                  flags.data_dir or None)
    result = heads.analyse(gated, flags.ablation, flags.single, flags.curve, flags.exact, flags.at_least, flags.random,
                           flags.seed)
    print(heads.describe(result))
    for title, head, rows in heads.tables(result):
        print(f"\n{title}\n{aligned([head, *rows], str.rjust)}")
    sys.stdout.flush()
    path = Path(loaded.directory) / heads.FILE
    write_json(path, result)
    if url := remote.as_url(workdir):
        remote_workdir.upload(url, path)
