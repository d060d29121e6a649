"""Writes an offline HTML page of all runs in a folder: search by name or field, sorting by any metric, and comparison.

    lmrep board runs

The page is board.html in the folder, one file that any browser opens; links lead to the reports of the runs. It reads
logs and configs alone. lmrep report makes the page of a few runs, with curves and predictions."""

from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path

FLAGS = {"output": Flag("", "the file to write (default: board.html in the first folder)", as_path)}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    if not arguments.paths:
        raise UserError("lmrep board needs a folder of runs: lmrep board runs")

    from lmrep.analysis.report import board

    show_messages()
    print(board.write([Path(path) for path in arguments.paths],
                      Path(arguments.flags.output) if arguments.flags.output else None))
