"""Plans a run for hardware that is not here: compiles its training step ahead of time, and prints the memory of a chip
by kind, the FLOPs, the bytes of collectives, the lower bound of the step time, and the time, chip-hours, energy and
price of the whole run.

    lmrep plan --config=experiments/bert.py:size=large,mesh=fsdp --topology=v5e:16x16
    lmrep plan --config=experiments/bert.py:size=large,mesh=fsdp --topology=h100:4x8
    lmrep plan --config=experiments/quickstart.py --topology=cpu:8
    lmrep plan --config=experiments/bert.py:size=large,mesh=fsdp --topology=v5e:2x2,v5e:4x4,v5e:8x8

Several topologies are compared in one table, in Markdown. --search tries meshes, recomputation (execution.remat) and
accumulation (microbatches), and ranks what fits. A run that does not fit makes the command look for a change that
does, and exit with 2. The fields of config.cost hold the price of a chip-hour, the power of a chip, the PUE and the
CO2 of the grid. With --workdir the plan is kept in its plan.json and shown in plan.html and in the report. TPU
topologies need libtpu: pip install -e '.[plan]'. For GPUs the step is compiled by JAX's CUDA plugin
(pip install -e '.[plan_gpu]'), or, where it is not installed, for devices of the CPU: memory is an estimate then.

Step times follow the roofline model: no step is faster than the longest of its matrix products, its memory traffic and
its communication at the chip's peak rates, and real steps are slower. The rates of CPU devices are measured now; their
caches, which the model leaves out, can make a step faster than it says."""

import json
import sys
from pathlib import Path

from lmrep.cli.arguments import Arguments, Flag, at_least
from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.files import check_output, write_json, write_text
from lmrep.core.messages import aligned
from lmrep.core.paths import as_path

FLAGS = {
    "topology": Flag("", "v5e:16x16, v5p:4x4x4, v6e:8x8: a TPU slice by its chips; h100:8, h100:4x8: the GPUs of a "
                         "host, or of 4 hosts (h100, h200, a100-40gb, a100-80gb, l40s, rtx4090); cpu:8: devices of "
                         "this CPU; several, separated by commas, are compared"),
    "slices": Flag(1, "how many such slices, joined by the slow network", bounds=at_least(1, 1024)),
    "search": Flag(False, "try meshes, recomputation and accumulation"),
    "candidates": Flag(12, "how many settings --search compiles at most", bounds=at_least(1, 1000)),
    "output": Flag("", "the JSON file of the plan; a page is written beside it (default: plan.json in --workdir)",
                   as_path),
}


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    flags = arguments.flags
    if not flags.topology:
        raise UserError("lmrep plan needs the hardware: --topology=v5e:16x16, --topology=h100:8 or --topology=cpu:8")
    config, choices = arguments.load_config(), []

    from lmrep.analysis.report.page import render_plan
    from lmrep.experiment import checks
    from lmrep.experiment import config as experiments
    from lmrep.planning import hardware, plan, search, table
    from lmrep.storage import remote_workdir

    if flags.output:
        check_output(flags.output)
    elif arguments.workdir and not remote.as_url(arguments.workdir):
        checks.check_writable(Path(arguments.workdir))
    experiment = experiments.parse(config)
    if "," in flags.topology:
        if flags.search or arguments.workdir or flags.output:
            raise UserError("several topologies are compared in a table; --search, --workdir and --output take one")
        topologies = hardware.find_all(flags.topology.split(","), flags.slices)
        for note in dict.fromkeys(topology.note for topology in topologies if topology.note):
            _say(f"{note}\n")
        print(table.markdown(table.SCALING), table.markdown(["---"] * len(table.SCALING)), sep="\n", flush=True)
        for topology in topologies:
            for line in table.scaling(topology, plan.plan(experiment, topology)):
                print(table.markdown(line), flush=True)
        return 0
    devices = hardware.find(flags.topology, flags.slices)
    if flags.search:
        choices = search.search(config, devices, flags.candidates, lambda number, limit, choice: _say(
            f"{number} of at most {limit}: {choice.flags}: {table.fit(choice.plans)}"))
        print(aligned(table.ranking([(choice.flags, choice.plans) for choice in choices])), end="\n\n")
        print(f"{'the fastest that fits' if choices[0].fits else 'none fits; the first'}: {choices[0].flags}\n")
        config, plans = search.with_fields(config, choices[0].fields), choices[0].plans
    else:
        plans = plan.plan(experiment, devices)
    total = plan.cost_of_run(plans, devices, experiment.cost)
    print(table.text(plans, devices, total))
    if not choices and not all(stage.fits for stage in plans):
        _say("\nlooking for a change that makes it fit")
        change = search.first_that_fits(config, plans, devices, progress=lambda choice: _say(
            f"{choice.flags}: {table.fit(choice.plans)}"))
        print(f"it fits with {change.flags}: {table.fit(change.plans)}" if change else
              "nothing that was tried makes it fit: recomputation, accumulation, sharding; use more chips")
    if arguments.workdir or flags.output:
        url = None if flags.output else remote.as_url(arguments.workdir)
        directory = remote_workdir.cache_dir(url) if url else Path(arguments.workdir or Path(flags.output).parent)
        sys.stdout.flush()
        directory.mkdir(parents=True, exist_ok=True)
        path = Path(flags.output) if flags.output else directory / table.FILE
        content = json.loads(json.dumps(table.record(plans, devices, total, config.to_dict(), choices), default=str))
        write_json(path, content)
        page = path.with_suffix(".html")
        write_text(page, render_plan(content))
        for file in (path, page) if url else ():
            remote_workdir.upload(url, file)
        print(f"\n{path}\n{page}")
    return 0 if all(stage.fits for stage in plans) else 2


def _say(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)
