"""The page of a claim, for the appendix of a paper: its table, a figure, commands, times, versions and machine."""

import statistics

from lmrep.analysis.report.page import environment
from lmrep.claims.figure import figure
from lmrep.claims.results import Results, cells, notes, state
from lmrep.core.messages import counted
from lmrep.core.progress import duration


def page(results: Results) -> str:
    """Returns the HTML of the page, one file without external references."""
    times = {name: f"{duration(statistics.fmean(run['seconds'].values()))} a run, mean of "
                   f"{counted(len(run['seconds']), 'seed')}" for name, run in results["runs"].items() if run["seconds"]}
    return environment().get_template("claim.html.j2").render(
        claim=results, state=state(results), cells=cells(results), notes=notes(results), times=times,
        wide=figure(results), narrow=figure(results, narrow=True))
