"""The cost of training: operations, time, energy and CO2, and charts of validation metrics against operations."""

from collections.abc import Sequence

from lmrep.analysis.report import metrics, prose, run_data, tables
from lmrep.analysis.report.metrics import Chart
from lmrep.analysis.report.run_data import RunData
from lmrep.planning.compute import CONVENTIONS, by_formulas

EXACT = "FLOPs of the run, exact"


def rows(runs: Sequence[RunData]) -> list[tuple[str, ...]]:
    """Returns the table of costs, with a column for each run."""
    return tables.by_run([_column(run) for run in runs])


def _column(run: RunData) -> dict[str, str]:
    cost = run.cost
    formulas = _by_formulas(run)
    done = cost.flops if cost else run.flops_at(run.step)
    column = {EXACT: prose.number(done) if done else ""}
    for name, flops in formulas.items():
        column[f"FLOPs by {CONVENTIONS[name]}"] = prose.number(flops) if flops else ""
    column |= {"tokens": prose.number(run.tokens) if run.tokens else "",
               "device-hours": prose.device_hours(run).removesuffix(" device-hours")}
    if cost is None:
        return column | dict.fromkeys(("energy", "CO2 equivalents", "energy from", "price"), "")
    known = cost.kwh is not None
    return column | {
        "energy": f"{cost.kwh:.3g} kWh, PUE {cost.pue:g} included" if known else "not known",
        "CO2 equivalents": f"{cost.co2_kg:.3g} kg, at {cost.grid:g} kg per kWh" if known else "",
        "energy from": cost.energy.removeprefix("not known: "),
        "price": f"{cost.price:,.2f}" if cost.price is not None else ""}


def _by_formulas(run: RunData) -> dict[str, float | None]:
    """Returns the operations up to the last step by published formulas; None for a formula that does not apply."""
    totals: dict[str, float | None] = {name: 0.0 for name in CONVENTIONS if name != "exact"}
    for i, (stage, steps) in enumerate(zip(run.stages, run_data.steps_done(run.stages, run.step), strict=True)):
        figures = by_formulas(run.network.objectives[i], stage) if run.network and run.network.flops else {}
        for name, total in totals.items():
            flops = figures[name].flops if name in figures else None
            totals[name] = None if total is None or flops is None else total + steps * stage.batch_size * flops
    return totals


def charts(runs: Sequence[RunData]) -> dict[str, Chart]:
    """Returns the charts of the headline metrics, or of the loss, for the runs whose operations are known and that
    measured the metric on validation data."""
    known = [i for i, run in enumerate(runs) if run.flops_at(run.step) and run.validation]
    judged = {name for i in known for name in metrics.headlines(runs[i])} or {"loss"}
    selected = {}
    for key, chart in metrics.charts(runs).items():
        lines = {i: name for i, name in chart.lines.items()
                 if i in known and name in judged and run_data.validated(runs[i], name)}
        if lines:
            baselines = {i: baseline for i, baseline in chart.baselines.items() if i in lines}
            selected[key] = chart._replace(lines=lines, baselines=baselines)
    return selected
