"""Writes one offline page of one or several runs: what was trained, how good it is, what it cost, how to repeat it.

The runs' workdirs are words: lmrep report runs/one runs/two. For one run the page is report.html in its workdir, for
several in the present directory."""

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "output": Flag("", "the file to write (default: report.html)"),
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    directories = [*([arguments.workdir] if arguments.workdir else []), *arguments.words]
    if not directories:
        raise UserError("lmrep report needs a run: lmrep report runs/quickstart, or several workdirs")

    from lmrep import api
    from lmrep.analysis import report
    from lmrep.core import remote
    from lmrep.storage import mirror
    from lmrep.training.metrics_log import show_messages

    show_messages()
    flags = arguments.flags
    path = report.write([mirror.here(directory) for directory in directories], flags.output or None,
                        data_dir=flags.data_dir or api.default_data_dir())
    if len(directories) == 1 and not flags.output and (url := remote.address(directories[0])):
        mirror.put(url, path)
    print(path)
    return 0
