"""Compares two checkpoints, workdirs (at their newest checkpoint) or published directories, parameter by parameter: the
largest absolute difference, the norm of the difference over that of the first, and the layer, the largest first. Of a
run with averages (optimizer.ema) these are compared, as they are what every command uses. The exit code is 0 whether
they differ or not."""

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {"raw": Flag(False, "compare the parameters as the optimizer left them, where a run has averages")}


def run(arguments: Arguments) -> int:
    """The command."""
    if len(arguments.words) != 2 or arguments.workdir or arguments.config_file or arguments.overrides:
        raise UserError("lmrep diff takes two directories: lmrep diff A B")
    a, b = arguments.words

    from lmrep.interop import conversion, differences
    from lmrep.storage import mirror

    (one, which), (other, whose) = (conversion.arrays(mirror.here(place), arguments.flags.raw) for place in (a, b))
    print(f"{a} ({which})\n{b} ({whose})\n{differences.describe(differences.compare(one, other), a, b)}")
    return 0
