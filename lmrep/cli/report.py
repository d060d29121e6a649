"""Writes an offline HTML page of one or several runs: what was trained, its metrics, what it cost, how to repeat it.

    lmrep report runs/one runs/two

The page of one run is report.html in its workdir, the page of several is report.html in the current directory."""

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path

FLAGS = {"output": Flag("", "the file to write (default: report.html)", as_path), "data_dir": DATA_DIR}


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    directories = [*([arguments.workdir] if arguments.workdir else []), *arguments.paths]
    if not directories:
        raise UserError("lmrep report needs at least one workdir: lmrep report runs/quickstart")

    from lmrep import api
    from lmrep.analysis import report
    from lmrep.core import remote
    from lmrep.storage import remote_workdir

    show_messages()
    flags = arguments.flags
    path = report.write([remote_workdir.local_copy(directory) for directory in directories], flags.output or None,
                        data_dir=flags.data_dir or api.default_data_dir())
    if len(directories) == 1 and not flags.output and (url := remote.as_url(directories[0])):
        remote_workdir.upload(url, path)
    print(path)
    return 0
