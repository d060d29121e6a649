"""Equal budgets (`lmrep reproduce --match`): the steps of the pretraining runs behind the rows of a claim, so that each
trains on as many tokens, with as many operations, or for as long as the run that others are compared with."""

from collections.abc import Callable, Mapping, Sequence

from lmrep.claims.claim import Claim
from lmrep.claims.results import Match
from lmrep.core.errors import UserError
from lmrep.experiment.config import resolve_stages
from lmrep.interop.chain import ChainRun
from lmrep.objectives import OBJECTIVES
from lmrep.planning import compute

STEPS, TIME = "steps", "time"  # as the claim says; by measured runs, which `decide` is given

Costs = Callable[[ChainRun], list[float]]  # what a step of each stage of a run takes of the budget
COSTS: Mapping[str, Costs] = {
    "tokens": lambda run: [stage.batch_size * stage.length for stage in resolve_stages(run.experiment)],
    "flops": lambda run: [stage.figures["exact"].flops for stage in compute.of_experiment(run.experiment)]}


def decide(claim: Claim, chain: Sequence[ChainRun], by: str, costs: Costs) -> Match:
    """Decides the steps of the runs of `pretraining`: those with which each comes closest to the budget of the first.

    Args:
      claim: whose runs `chain` are, with the steps of the claim.
      by: what is equal, a key of `COSTS` or TIME.
      costs: what a step of each stage takes of it: tokens with padding, FLOPs, or seconds.

    Raises:
      UserError: as `pretraining`; the steps of a run are not known before it is trained, or its costs are not.
    """
    reference, *others = runs = pretraining(claim, chain)
    totals, averages = {}, {}
    for run in runs:
        experiment = run.experiment
        if field := "budget" if experiment.budget else "evaluation.patience" if experiment.evaluation.patience else "":
            raise UserError(f"run {run.name} sets {field}, so that its steps are not known before it is trained; leave "
                            f"--match={by} out")
        try:
            of_stages = costs(run)
        except UserError as error:
            raise UserError(f"--match={by}: run {run.name}: {error}") from None
        fractions = [stage.fraction for stage in experiment.stages] or [1.0]
        averages[run.name] = sum(fraction * cost for fraction, cost in zip(fractions, of_stages, strict=True))
        totals[run.name] = sum(stage.steps * cost for stage, cost in zip(
            resolve_stages(experiment), of_stages, strict=True))
    budget = totals[reference.name]
    return Match(by=by, reference=reference.name, budget=budget, steps={reference.name: reference.experiment.steps} | {
        run.name: max(1, round(budget / averages[run.name])) for run in others})


def pretraining(claim: Claim, chain: Sequence[ChainRun]) -> list[ChainRun]:
    """Returns the pretraining runs that the rows measure or start from, the reference first: that of the first row that
    others are compared with. Raises UserError where no steps can be matched."""
    against = {row.against for row in claim.rows.values()}
    compared = next((name for name in claim.rows if name in against), "")
    origins = {name: _origin(claim.run_of(name), chain) for name in (compared, *claim.rows) if name}
    runs = {run.name: run for run in origins.values() if run}
    if not compared or not origins[compared] or len(runs) < 2:
        why = (f"the row {compared!r}, with which others are compared, starts from no pretraining on text"
               if compared and not origins[compared] else "no row is compared with one of another pretraining run")
        raise UserError(f"--match sets the steps of pretraining, and {why}; leave it out")
    same: dict[str, ChainRun] = {}
    for run in runs.values():
        fields = {path: value for path, value in run.overrides if path not in ("steps", "seed")}
        other = same.setdefault(repr((run.file, run.argument, sorted(fields.items()))), run)
        if other.experiment.steps != run.experiment.steps:
            raise UserError(f"the runs {other.name} and {run.name} differ in their steps alone, which --match makes "
                            "equal; leave it out")
    return [*runs.values()]


def _origin(name: str, chain: Sequence[ChainRun]) -> ChainRun | None:
    """Returns the run that pretrained a run's network: itself or an earlier one; None if none did. A network that takes
    layers of another one is a new network."""
    by_name, by_directory = {run.name: run for run in chain}, {run.directory: run for run in chain}
    run = by_name.get(name)  # None for what a command makes
    while run:
        experiment = run.experiment
        before = by_directory.get(experiment.init) or by_directory.get(experiment.frozen.get("features", ""))
        pretrains = experiment.objective["name"] in OBJECTIVES
        if not before or (pretrains and experiment.init_mapping):
            return run if pretrains else None
        run = before
    return None


def overrides(match: Match | None) -> dict[str, str]:
    """Returns the fields of runs, {NAME.steps: value}."""
    return {f"{name}.steps": str(steps) for name, steps in match["steps"].items()} if match else {}
