"""Trains an experiment in a workdir: prepares data that is missing, trains, and resumes a run that was stopped.

With --workdir alone, the run in it is resumed with its own config; --config.FIELD=VALUE changes fields that a resumed
run may change. With a config file that defines a chain of runs, such as pretraining, adaptation and fine-tuning, they
are trained in order in WORKDIR/NAME; --config.NAME.FIELD=VALUE changes a field of the run NAME, and the same command
continues. The workdir gets config.json, metrics.jsonl, timing.jsonl, cost.jsonl, provenance.jsonl, tokenizer/,
tensorboard/ and checkpoints/.

Processes started together by srun, mpirun, torchrun, a Kubernetes Job or on the hosts of a TPU slice train as one.
Elsewhere set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID; see launch/README.md. Process 0
prints; errors are printed by the process that raises them."""

import dataclasses
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag, at_least
from lmrep.core import compilation_cache, remote
from lmrep.core.errors import UserError
from lmrep.core.host import check_backend
from lmrep.core.messages import show_messages
from lmrep.distributed import process_group
from lmrep.metrics import Metric, verdict

FLAGS = {
    "data_dir": DATA_DIR,
    "profile": Flag(0, "the number of steps to trace into WORKDIR/profile, after a few warm-up steps",
                    bounds=at_least(0)),
}
COLUMNS = 4  # of figures, beside each other


def run(arguments: Arguments) -> None:
    """Runs the command."""
    arguments.required_workdir()
    flags = arguments.flags
    process_group.start()
    check_backend()
    if process_group.joined() and flags.compilation_cache:
        compilation_cache.enable(several_processes=True)
    if process_group.first():  # of the other processes, warnings alone are shown
        show_messages()
    chain = process_group.agreed(arguments.load_chain)

    from lmrep.interop import chain as chains

    for number, run in enumerate(chains.in_order(chain), 1):
        if process_group.first():
            print(f"\n{run.name}, run {number} of {len(chain)}: {run.directory}", flush=True)
        _train(dataclasses.replace(arguments, config_file=run.file, config_argument=run.argument,
                                   overrides=run.texts, workdir=run.directory))
    if not chain:
        _train(arguments)


def _train(arguments: Arguments) -> None:
    """Trains one run, and prints what it learned."""
    workdir, flags = arguments.workdir, arguments.flags
    config = process_group.agreed(arguments.load_config)

    from lmrep import api

    outcome = api.train(config, workdir, data_dir=flags.data_dir or None, profile=flags.profile)
    if not process_group.first():
        return
    experiment, alone = api.experiments.parse(config), not process_group.joined()
    objective = api.experiments.resolve_stages(experiment)[-1].objective_name
    print(summary(outcome, experiment.metrics(objective)))
    if outcome.prompts and alone:  # one of several processes does not make the others wait
        print(samples(api.load(workdir), outcome.prompts))
    text = next(iter(outcome.prompts), outcome.example)
    usual = experiment.evaluated_split
    split = next((split for split in (usual, "validation") if split in outcome.splits), None)
    print(next_steps(workdir, flags.data_dir, text, _page(workdir).exists(), "" if split == usual else split,
                     experiment.log.tensorboard))


def _page(workdir: str) -> Path:
    """Returns the path of a run's report, which is on this machine if its workdir is remote."""
    from lmrep.storage import remote_workdir

    url = remote.as_url(workdir)
    return Path(remote_workdir.copy_dir(url) if url else workdir) / "report.html"


def summary(outcome: Any, metrics: Mapping[str, Metric]) -> str:
    """Says what the model learned: a table of what it is compared with, and what it loses to."""
    lines = [f"\nTrained to step {outcome.steps:,}."]
    if outcome.best_step:
        lines.append(f"The best checkpoint is that of step {outcome.best_step:,}.")
    if cells := verdict.table(metrics, outcome.comparison, outcome.intervals):
        lines += ["On held-out text:", *aligned(cells)]
    return "\n".join([*lines, *filter(None, [outcome.verdict])])


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Formats a table, whose first row is its head, in blocks of at most `COLUMNS` columns of figures."""
    lines, (head, *rows) = [], cells
    for first in range(1, len(head), COLUMNS):
        columns = [0, *range(first, min(first + COLUMNS, len(head)))]
        titles = [textwrap.wrap(head[i], 20) for i in columns]
        height = max(map(len, titles))
        block = [*zip(*([""] * (height - len(title)) + title for title in titles), strict=True),
                 *([row[i] for i in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*block, strict=True)]
        lines += [f"  {row[0]:{widths[0]}}" + "".join(
            f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)) for row in block]
    return [line.rstrip() for line in lines]


def samples(run, texts: Sequence[str]) -> str:
    """Formats the model's predictions for sample texts, by capability."""
    lines = []
    for capability in run.capabilities:
        fitting = [text for text in texts if run.capability_of(text) is capability]
        if not fitting:
            continue
        lines.append(f"\nIt {capability.summary}:")
        try:
            predictions = capability.predict(run, fitting, capability.sample_options, [None] * len(fitting))
        except UserError as error:  # the run is complete all the same
            lines.append(f"  {error}")
        else:
            lines += [textwrap.indent(capability.to_text(text, prediction, run.tokenizer), "  ")
                      for text, prediction in zip(fitting, predictions, strict=True)]
    return "\n".join(lines)


def next_steps(
    workdir: str, data_dir: str, text: str, report: bool = True, split: str | None = "", tensorboard: bool = True
) -> str:
    """Commands to try next, for a run with or without report.html and TensorBoard's files; `split` is the one to
    evaluate: "" for the default of `lmrep evaluate`, None where none is held out."""
    look = f"open {shlex.quote(str(_page(workdir)))} in a browser" if report else f"lmrep report {shlex.quote(workdir)}"
    run, stores = f"--workdir={shlex.quote(workdir)}", f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
    # In double quotes if it has apostrophes and nothing special between them.
    quoted = f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)
    predict = f"\n  lmrep predict {run} {quoted}" if text else ""
    option = f" --split={split}" if split else ""
    evaluate = "" if split is None else f"\n  lmrep evaluate {run}{stores}{option}"
    return f"""
Next:{predict}{evaluate}
  lmrep inspect {run}{stores}
  {look}{f"; tensorboard --logdir={shlex.quote(workdir)}" * tensorboard}"""
