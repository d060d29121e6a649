"""Trains the rows of a published table in miniature, with several seeds, and compares them with the paper.

    lmrep reproduce --list
    lmrep reproduce roberta:table1 --workdir=claims/roberta_table1 --seeds=0-2
    lmrep reproduce roberta:table1 --scale=paper --plan --topology=v5e:4x4 --config.cost.price_per_hour=1.2

A claim is a file of experiments/claims/: what the paper says, its figures, the runs as choices and fields of pages,
and the measure by which all rows are evaluated in the same way. --config=FILE.py is a claim of your own. --list shows
the claims, what they take, and what came out when they were run for this version of lmrep.

Every run is trained with every seed, each in a process of its own, and rows share the runs that they have in common.
The same command continues: what is trained and measured is kept, and --seeds may grow. Several processes may work on
one workdir. --config.FIELD=VALUE sets a field of all runs, --config.NAME.FIELD=VALUE one of the run NAME.

--match=tokens, flops or time sets the steps of every pretraining run behind a row, so that it gets the budget of the
run that others are compared with. Fine-tuning runs stay as they are.

Rows are compared over pairs of runs of one seed by Student's t. The intervals of a table hold together at 95 %
(Bonferroni). A claim about a row is: reproduced, if the interval is on the claimed side of 0; contradicted, if it is
on the other; ordering only, if the mean alone is on the claimed side; not resolved at this scale otherwise, with the
number of seeds that would resolve it. The workdir has
results.json, table.md, table.tex, figure.svg, and report.html, a page with all of them and the command of every run."""

from pathlib import Path

from lmrep.cli.arguments import DATA_DIR, Arguments, Flag, parse
from lmrep.config.record import suggestion
from lmrep.core.errors import RunFault, UserError

FLAGS = {
    "list": Flag(False, "list the claims that come with lmrep"),
    "scale": Flag("miniature", "miniature, or another size that the claim has: single (one GPU) or paper"),
    "seeds": Flag("0-2", "the seeds of every run, as 0-4 or 0,1,7"),
    "match": Flag("steps", "what is equal for all pretraining runs: steps, as the claim says; tokens; flops; or "
                  "time, by the speed of the first steps, which is measured here"),
    "budget": Flag("", "a time such as 2h, after which no further run is started; the same command continues"),
    "show": Flag(False, "show the results so far, and train nothing"),
    "plan": Flag(False, "plan every run for --topology, as lmrep plan does, and train nothing"),
    "topology": Flag("h100:8", "the hardware of --plan, such as v5e:4x4 or h100:8"),
    "data_dir": DATA_DIR,
}


def run(arguments: Arguments) -> int:
    """Runs the command and returns its exit code."""
    import math

    from lmrep.claims import claim as claims
    from lmrep.claims import results
    from lmrep.core.progress import parse_duration
    from lmrep.experiment import settings

    flags = arguments.flags
    if flags.list:
        for name, file in claims.installed().items():
            claim = claims.load(file)
            cost = f"; three seeds take about {claim.cost}" if claim.cost else ""
            print(f"{name}: {claim.paper}\n  {claim.statement}\n  {results.state(results.of_package(file))}{cost}")
        return 0
    if len(arguments.words) + bool(arguments.config_file) != 1:
        raise UserError("lmrep reproduce takes one claim, such as roberta:table1, or --config=FILE.py; lmrep reproduce "
                        "--list shows those of the package")
    from lmrep.claims.reproduce import overrides_by_run, reproduce

    file, seeds = claims.find(arguments.config_file or arguments.words[0]), settings.parse_seeds(flags.seeds)
    claim = claims.load(file, flags.scale)
    _check_commands(claim, file)
    if flags.plan:
        from lmrep.claims import match, plan
        from lmrep.config.record import choose
        from lmrep.interop import chain
        from lmrep.planning import hardware

        devices = hardware.find(flags.topology)
        print(f"{claim.paper}, scale {flags.scale}, {flags.topology}{f': {devices.note}' if devices.note else ''}\n")
        directory = Path(arguments.workdir or f"claims/{file.stem}").absolute()
        overrides = overrides_by_run(dict(arguments.overrides), claim, file, directory)
        if flags.match != match.STEPS:
            costs = choose(match.COSTS, flags.match, "--match of a plan")
            matched = match.decide(claim, chain.resolve(claim.runs, overrides, directory, file), flags.match, costs)
            print(f"{results.budget(matched)}\n")
            overrides |= match.overrides(matched)
        for line in plan.lines(claim, file, directory, overrides, devices, len(seeds)):
            print(line, flush=True)
        return 0
    result = reproduce(
        file, Path(arguments.required_workdir()).absolute(), scale=flags.scale, seeds=seeds,
        overrides=dict(arguments.overrides), budget=parse_duration(flags.budget, "--budget") if flags.budget else
        math.inf, data_dir=flags.data_dir, train=not flags.show, match=flags.match)
    print(f"\n{result}", flush=True)
    return RunFault.exit_code if result.failures else 0


def _check_commands(claim, file: Path) -> None:
    """Raises UserError if a command of a claim, or a flag of its measure, does not exist."""
    from lmrep.claims.reproduce import commands
    from lmrep.cli.main import COMMANDS, flags_of

    for name, *words in commands(claim):
        if name not in COMMANDS:
            raise UserError(f"{file}: there is no command {name!r}{suggestion(name, COMMANDS)}")
        try:
            parse(name, words, flags_of(name))
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
