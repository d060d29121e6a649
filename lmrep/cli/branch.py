"""Writes a new run that continues from a checkpoint of another one, with its optimizer state, under another learning
rate.

    lmrep branch --workdir=runs/stable --output=runs/decay --step=8000 --config.steps=9000 \\
        --config.optimizer.schedule.cooldown_steps=1000
    lmrep train --workdir=runs/decay

Parameters, moments, step, random numbers and the position in the data are those of the checkpoint, so that several
decays may begin at one run with a stable rate (optimizer.schedule.name=warmup_stable_decay). steps counts from the
beginning of the first run. Fields of the optimizer's rate, schedule, weight decay and clipping may change, and what a
resumed run may change. (A run with init= takes the parameters alone, and may change everything.)"""

from pathlib import Path

from lmrep.cli.arguments import STEP, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path

FLAGS = {"output": Flag("", "the directory to write", as_path), "step": STEP}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    source, target = Path(arguments.required_workdir()), Path(arguments.flags.output)
    if not arguments.flags.output:
        raise UserError("lmrep branch needs --output, the directory to write")
    if arguments.config_file:
        raise UserError("lmrep branch takes the config of the run in --workdir; leave --config out, and set fields "
                        "with --config.FIELD=VALUE")

    from lmrep.experiment import branching
    from lmrep.experiment import config as experiments

    step = branching.branch(source, target, experiments.parse(arguments.load_config()), arguments.step)
    print(f"{target}: the run {source} at step {step:,}; it continues with lmrep train --workdir={target}")
