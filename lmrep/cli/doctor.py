"""Checks everything that a run needs before it starts: corpus, splits, tokenizer, mesh, memory, disk, workdir, the
checkpoint that it resumes or starts from, dashboards. It prints one line per check; a failed check says how to fix it,
and makes the exit code 2.

Nothing is trained or written; the training step is compiled, for its memory (not with --noplan). It takes the flags of
lmrep train. Under srun, mpirun or in a Kubernetes Job each process checks its own host without waiting for the others:
process 0 prints all checks, the others only those that failed. With --devices, a machine without accelerators checks a
run for one that has them, and with --topology also whether the step fits the memory there, as lmrep plan does."""

import os
import socket

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag, at_least
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.distributed import process_group

FLAGS = {
    "data_dir": DATA_DIR,
    "files": Flag("", "a glob of the files that lmrep evaluate --files will read", as_path),
    "devices": Flag(0, "the devices of the run over all hosts; 0: those of this host times the number of processes",
                    bounds=at_least(0)),
    "topology": Flag("", "the hardware of the run, as for lmrep plan: h100:8, h100:4x8, v5e:16x16, cpu:8"),
    "plan": Flag(True, "compile the training step, to measure its memory; --noplan counts only the training state"),
}


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    flags, process = arguments.flags, process_group.launched(os.environ)
    if flags.devices and flags.topology:
        raise UserError("--devices and --topology are given; the topology has the number of devices: leave out "
                        "--devices")
    config = arguments.load_config()

    import jax

    from lmrep import doctor

    devices = flags.devices or (process and process.count * (
        len(process_group.local_devices(process, os.environ)) or jax.local_device_count()))
    findings = doctor.examine(config, arguments.workdir or None, flags.data_dir or None, flags.files, devices,
                              process.count if process else 1, flags.plan, flags.topology)
    failed = [finding for finding in findings if finding.mark == doctor.FAILED]
    if process is None or process.index == 0:
        print(doctor.report(findings))
    for finding in failed if process and process.index else ():
        print(f"process {process.index} on {socket.gethostname()}: {' '.join(finding)}")
    return 2 if failed else 0
