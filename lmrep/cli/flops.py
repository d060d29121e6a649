"""Computes the floating-point operations of training by three conventions: ELECTRA's published script, 6 N plus
attention, and exactly, from the traced step. It takes --config of an experiment, or --workdir of a run, and neither
reads data nor compiles; --published shows published figures beside those computed here.

Only training steps are counted, not validation. Where a convention does not apply to a network or an objective, the
output says so."""

from lmrep.cli.arguments import Arguments, Flag
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError
from lmrep.planning.conventions import MASKED_FRACTION

FLAGS = {
    "published": Flag(False, "the published compute of language models, and the same computed here"),
    "output_fraction": Flag(MASKED_FRACTION, "the fraction of positions whose masked tokens the script counts as "
                            "predicted; it has 20 of 128 for every masked language model",
                            bounds=Bounds(above=0, at_most=1)),
    "json": Flag(False, "print all figures as JSON"),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    flags = arguments.flags
    if flags.published and (arguments.config_file or arguments.workdir or arguments.overrides):
        raise UserError("--published shows a fixed table; leave out --config and --workdir")
    if arguments.overrides and not arguments.config_file:
        raise UserError("--config.FIELD needs --config=FILE.py; the config of the run in --workdir is used unchanged")
    if arguments.config_file and arguments.workdir:
        raise UserError("lmrep flops takes --config of an experiment, or --workdir of a run; leave one of them out")

    import json

    from lmrep.data import tokenizers
    from lmrep.experiment import config
    from lmrep.planning import compute, published, run_cost
    from lmrep.storage import remote_workdir

    if flags.published:
        print(json.dumps({name: {"published": run.flops, "derived": run.derived, **published.computed(run)}
                          for name, run in published.PUBLISHED.items()}
                         | {name: {"published": flops} for name, flops in published.PROFILED.items()}, indent=2)
              if flags.json else compute.published_table())
        return
    vocabulary = done = None
    if arguments.workdir:
        directory = remote_workdir.local_copy(arguments.workdir)
        experiment, vocabulary = config.read_run(directory)[0], tokenizers.load(directory / "tokenizer").vocabulary
        cost = run_cost.read(directory)
        done = (cost.step, cost.flops) if cost and cost.flops is not None else None
    else:
        experiment = config.parse(arguments.load_config())
    stages = compute.of_experiment(experiment, vocabulary, flags.output_fraction)
    if flags.json:
        recorded = {"done": {"step": done[0], "flops": done[1]}} if done else {}
        print(json.dumps({"name": experiment.name, **compute.to_json(stages), **recorded}, indent=2))
    else:
        print(compute.table(experiment.name, stages, done, flags.output_fraction))
