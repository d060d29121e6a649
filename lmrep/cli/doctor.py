"""Checks everything a run will need before it needs it: corpus, splits, tokenizer, mesh, memory, disk, workdir, the
checkpoint to go on or start from, dashboards. A line a check; what FAILED says its mend, and makes the exit code 2.

Nothing is trained, built or kept. Takes the flags of lmrep train. Under srun, mpirun or in a Kubernetes Job each
process looks at its own host and does not wait for the others: process 0 prints all, another what failed on its host.
With --devices a machine without accelerators checks what is for one that has them."""

import os
import socket

from lmrep.cli.arguments import Arguments, Flag
from lmrep.cli.train import config_of
from lmrep.core.errors import UserError
from lmrep.distributed import process_group

FLAGS = {
    "data_dir": Flag("", "where token stores live (default: $LMREP_DATA_DIR or ~/.cache/lmrep)"),
    "files": Flag("", "a glob that lmrep evaluate --files will be given"),
    "devices": Flag(0, "how many the run will have on all its hosts; 0: those of this host, times the processes"),
}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(words=True)
    flags, here = arguments.flags, process_group.place(os.environ)
    if flags.devices < 0:
        raise UserError(f"--devices is {flags.devices}; expected how many the run will have")
    config = config_of(arguments)

    from lmrep import doctor

    findings = doctor.examine(
        config, arguments.workdir or None, flags.data_dir or None, flags.files,
        flags.devices or (here and here.processes * _own_devices(here)), here.processes if here else 1)
    failed = [finding for finding in findings if finding.mark == doctor.FAILED]
    if here is None or here.index == 0:
        print(doctor.report(findings))
    for finding in failed if here and here.index else ():
        print(f"process {here.index} on {socket.gethostname()}: {' '.join(finding)}")
    return 2 if failed else 0


def _own_devices(here: process_group.Place) -> int:
    """How many of the devices that this process sees will be its own."""
    import jax

    own = process_group.devices(here, os.environ)
    return jax.local_device_count() if own is None else len(own)
