"""What the runs of a claim take on hardware that is not here, by `lmrep.planning.plan`. Nothing is trained."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from lmrep.claims.claim import Claim
from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.experiment.record import Experiment
from lmrep.interop import chain as chains
from lmrep.planning import plan, table
from lmrep.planning.hardware import Hardware

HEAD = ("run", "steps", "chips", "memory of a chip", "time, at least", "chip-hours", "price")


def lines(
    claim: Claim, file: Path, directory: Path, overrides: Mapping[str, str], hardware: Hardware, seeds: int,
) -> Iterator[str]:
    """Yields a line of a table in Markdown for each run with one seed, as soon as it is planned, and sentences about
    all runs with all seeds.

    Args:
      file: of the claim.
      directory: the runs' workdir; need not exist.
      overrides: NAME.FIELD -> value.
      hardware: that every run is planned for.
      seeds: the number of seeds.

    Raises:
      UserError: a config is invalid.
    """
    chain, costs = chains.resolve(claim.runs, overrides, directory, file), []
    yield table.markdown(HEAD)
    yield table.markdown(["---"] * len(HEAD))
    for run in chain:
        cells, cost = _plan(run.experiment, hardware)
        costs += [cost] if cost else []
        yield table.markdown([run.name, *cells])
    times = seeds * math.fsum(cost.hours for cost in costs), seeds * math.fsum(cost.chip_hours for cost in costs)
    prices = [cost.price for cost in costs if cost.price is not None]
    price = f"price {seeds * math.fsum(prices):,.2f}" if prices else (
        "the price is not known (--config.cost.price_per_hour=X)")
    yield f"\n{counted(len(costs), 'run')} with {counted(seeds, 'seed')}, one after the other: at least " + (
        f"{table.hours(times[0])}, {times[1]:,.3g} chip-hours; {price}")
    if missing := len(chain) - len(costs):
        yield f"not in these sums: {counted(missing, 'run')} without a cost"


def _plan(experiment: Experiment, hardware: Hardware) -> tuple[list[str], plan.PlannedCost | None]:
    """Returns the cells of a run, and its cost; the reason in place of them, and None, if it is not known."""
    try:
        stages = plan.plan(experiment, hardware)
    except UserError as error:
        return [f"cannot be planned: {error}", *[""] * (len(HEAD) - 2)], None
    cost, chips = plan.cost_of_run(stages, hardware, experiment.cost), f"{math.prod(stages[0].mesh.values()):,}"
    if cost is None:
        return ["the data decide the steps", chips, table.fit(stages), "", "", ""], None
    return [f"{sum(stage.steps for stage in stages):,}", chips, table.fit(stages), table.hours(cost.hours),
            f"{cost.chip_hours:,.3g}", "" if cost.price is None else f"{cost.price:,.2f}"], cost
