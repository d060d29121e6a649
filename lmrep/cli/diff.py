"""Compares two checkpoints, parameter by parameter.

A and B are workdirs (their newest checkpoint is read, or the best one where checkpoint.load says so, as it does for
tasks) or published directories. For each parameter that differs it prints the largest absolute difference, the norm of
the difference relative to that of A, and the layer, with the largest difference first. Where a run keeps averaged
parameters (optimizer.ema) these are compared, since every command uses them. The exit code is 0 whether they
differ or not."""

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {"raw": Flag(False, "compare the parameters without averaging, where a run has averages")}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    if len(arguments.words) != 2:
        raise UserError("lmrep diff takes two directories: lmrep diff A B")
    a, b = arguments.paths

    from lmrep.interop import conversion, differences

    (arrays_a, description_a), (arrays_b, description_b) = (
        conversion.read_arrays(path, arguments.flags.raw) for path in (a, b))
    print(f"{a} ({description_a})\n{b} ({description_b})\n"
          f"{differences.describe(differences.compare(arrays_a, arrays_b), a, b)}")
