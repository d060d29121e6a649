"""Lists the config files that come with lmrep, and what they train. With the name of a file, prints its description:
the command, the cost, the expected figures and its choices; with --copy, writes it into the current directory.

    lmrep pages
    lmrep pages bert.py
    lmrep pages bert.py --copy

Every command takes these names: --config=bert.py:size=tiny works in any directory. A file of that path in the current
directory comes first."""

from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag
from lmrep.config.record import choose
from lmrep.core.errors import UserError
from lmrep.core.files import write_bytes
from lmrep.core.messages import aligned

FLAGS = {"copy": Flag(False, "write the files into the current directory, to edit")}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    from lmrep.experiment import page_files

    known = page_files.installed((page_files.CONFIG, page_files.CHAIN))
    files = [choose(known, name if name.endswith(".py") else f"{name}.py", "the config file")
             for name in arguments.words]
    if arguments.flags.copy:
        if not files:
            raise UserError("--copy needs the name of a config file: lmrep pages bert.py --copy")
        if existing := [file.name for file in files if Path(file.name).exists()]:
            raise UserError(f"{existing[0]} exists in this directory; remove or rename it first")
        for file in files:
            write_bytes(file.name, file.read_bytes())
            print(f"{file.name}: edit it, and train with --config={file.name}")
    elif files:
        print("\n\n".join(page_files.docstring(file) for file in files))
    else:
        print(aligned([(name, " ".join(page_files.docstring(file).partition("\n\n")[0].split()))
                       for name, file in known.items()]))
