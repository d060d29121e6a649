"""Makes a workdir whose parameters are the mean of a run's over several checkpoints.

    lmrep average WORKDIR TARGET [--last=3] [--steps=8000,9000,10000]

Every command but train takes TARGET as it takes WORKDIR; a new run starts from it with init=TARGET. How many there are
to take is checkpoint.keep. (A running average over all steps is optimizer.ema.)"""

from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "last": Flag(3, "how many of the newest checkpoints to take"),
    "steps": Flag("", "which checkpoints to take, by their steps, with commas; empty: the newest"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    flags = arguments.flags
    if len(arguments.words) != 2 or arguments.workdir or arguments.config_file or arguments.overrides:
        raise UserError("lmrep average takes two directories: lmrep average WORKDIR TARGET [--last=3]")
    if flags.last < 2:
        raise UserError(f"--last is {flags.last}; expected at least 2")
    numbers = [number for number in str(flags.steps).split(",") if number]
    if wrong := [number for number in numbers if not number.strip().isdecimal()]:
        raise UserError(f"--steps has {wrong[0]!r}; expected steps with commas between them: --steps=8000,9000")
    source, target = map(Path, arguments.words)

    from lmrep.storage import averaging

    taken = averaging.average(source, target, [int(number) for number in numbers], flags.last)
    print(f"{target}: the mean of checkpoints {', '.join(map(str, taken))} of {source}")
    return 0
