"""Trains a linear classifier on every layer of a network, and prints its accuracy by layer with 95 % intervals.

--config is a config file of tagging or classification, which says what is predicted from which data; --workdir is a
run or a published directory, whose network and tokenizer are used. The network's vectors are computed once, and the
classifiers of all layers are trained together; the network does not change. --untrained probes a network of the same
config with random parameters too, since much can be read from the words alone.

The result is also written to probes.json in the workdir, and shown by lmrep report; of a published directory, to the
file that --output names."""

import dataclasses
import sys
from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag, at_least
from lmrep.core.errors import UserError
from lmrep.core.files import check_output
from lmrep.core.messages import aligned, show_messages
from lmrep.core.paths import as_path

FLAGS = {
    "examples": Flag(0, "the number of training examples, at equal distances; 0: all", bounds=at_least(0)),
    "untrained": Flag(False, "probe a network with random parameters too"),
    "output": Flag("", "the JSON file to write (default: probes.json in the workdir)", as_path),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    if not arguments.config_file:
        raise UserError("lmrep probe needs the config file of a task, which says what is predicted: "
                        "--config=experiments/tasks/ud_pos.py:data=UD_English-EWT")

    from lmrep.analysis import probes
    from lmrep.core import remote
    from lmrep.interop import conversion

    output = Path(flags.output) if flags.output else None
    if output is None and not remote.as_url(workdir) and conversion.is_workdir(Path(workdir)):
        output = Path(workdir) / probes.FILE
    if output:
        check_output(output)
        probes.stored(output)  # a damaged file is refused now
    show_messages()
    result = probes.probe(dataclasses.replace(arguments, workdir=None).load_config(), workdir, flags.examples,
                          flags.untrained)
    head, rows = probes.table(result)
    print(probes.describe(result))
    print(aligned([head, *rows]))
    sys.stdout.flush()
    if output:
        probes.store(result, output)
