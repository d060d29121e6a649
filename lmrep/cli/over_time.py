"""`--checkpoints=all` of evaluate and probe: the same measurement of every checkpoint of a run."""

from collections.abc import Callable, Mapping
from typing import Any

from lmrep.cli.arguments import STEP, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import aligned

FLAGS = {
    "step": STEP,
    "checkpoints": Flag("", "all: measure every checkpoint of the run, and print a table with a row for each; "
                        "checkpoint.steps says which a run keeps"),
}


def checkpoints(arguments: Arguments, workdir: str) -> list[int]:
    """Returns the steps that --checkpoints=all names; [] without the flag. Raises UserError for another value, for a
    --step beside it, and where there is no checkpoint."""
    flags = arguments.flags
    if not flags.checkpoints:
        return []
    if flags.checkpoints != "all" or arguments.step is not None:
        raise UserError(f"--checkpoints is {flags.checkpoints!r}, and --step {flags.step}; expected --checkpoints=all, "
                        "or --step of one checkpoint")
    from lmrep.storage import remote_workdir

    return remote_workdir.saved_steps(workdir)


def measure(steps: list[int], at: Callable[..., Any]) -> Mapping[str, Any]:
    """Measures the checkpoints of `steps`, and prints a table of their numbers. `at(step=)` returns `values` and
    `store`, which is called before the next checkpoint, so that a killed command keeps what it has measured. Returns
    the values of the last checkpoint."""
    numbers: dict[int, dict[str, float]] = {}
    for step in steps:
        measured = at(step=step)
        measured.store()
        numbers[step] = {name: value for name, value in measured.values.items() if isinstance(value, int | float)}
    # Stages may have different objectives.
    names = dict.fromkeys(name for values in numbers.values() for name in values)
    rows = [[f"{step:,}", *(f"{values[name]:,.5g}" if name in values else "" for name in names)]
            for step, values in numbers.items()]
    print(aligned([["step", *names], *rows], str.rjust), flush=True)
    return measured.values
