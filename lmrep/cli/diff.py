"""Compares two checkpoints, workdirs (at their newest checkpoint) or published directories, parameter by parameter: the
largest absolute difference, the norm of the difference over that of the first, and the layer, the largest first. The
exit code is 0 whether they differ or not."""

from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError

FLAGS = {}


def run(arguments: Arguments) -> int:
    """The command."""
    if len(arguments.words) != 2 or arguments.workdir or arguments.config_file or arguments.overrides:
        raise UserError("lmrep diff takes two directories: lmrep diff A B")
    a, b = arguments.words

    from lmrep.interop import conversion, differences
    from lmrep.training import mirror

    found = differences.compare(conversion.arrays(mirror.here(a)), conversion.arrays(mirror.here(b)))
    print(differences.describe(found, a, b))
    return 0
