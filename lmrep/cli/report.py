"""Writes an offline HTML page of one or several runs: what was trained, its metrics, what it cost, how to repeat it.

    lmrep report runs/one runs/two

The page of one run is report.html in its workdir, the page of several is report.html in the current directory."""

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path

FLAGS = {"output": Flag("", "the file to write (default: report.html)", as_path), "data_dir": DATA_DIR}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    directories = [*([arguments.workdir] if arguments.workdir else []), *arguments.paths]
    if not directories:
        raise UserError("lmrep report needs at least one workdir: lmrep report runs/quickstart")

    from lmrep import api

    show_messages()
    print(api.report(directories, arguments.flags.output or None, data_dir=arguments.flags.data_dir or None))
