"""Writes a workdir whose parameters are the mean of a run's over several checkpoints.

    lmrep average WORKDIR TARGET [--last=3] [--steps=8000,9000,10000]

Every command except train takes TARGET as a run; a new run starts from it with init=TARGET. checkpoint.keep decides
how many checkpoints a run keeps. (For a running average over all steps, set optimizer.ema.)"""

from pathlib import Path

from lmrep.cli.arguments import WHOLE, Arguments, Flag, at_least
from lmrep.core.errors import UserError
from lmrep.core.messages import shown

FLAGS = {
    "last": Flag(3, "the number of newest checkpoints to average", bounds=at_least(2)),
    "steps": Flag("", "the steps of the checkpoints to average, separated by commas; empty: the newest"),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    flags = arguments.flags
    if len(arguments.words) != 2:
        raise UserError("lmrep average takes two directories: lmrep average WORKDIR TARGET [--last=3]")
    numbers = [number for number in str(flags.steps).split(",") if number]
    if wrong := [number for number in numbers if not WHOLE.fullmatch(number.strip())]:
        raise UserError(f"--steps has {shown(wrong[0])}; expected steps separated by commas: --steps=8000,9000")
    source, target = map(Path, arguments.paths)

    from lmrep.storage import averaging

    averaged = averaging.average(source, target, [int(number) for number in numbers], flags.last)
    print(f"{target}: the mean of checkpoints {', '.join(map(str, averaged))} of {source}")
