"""The page of all runs in a folder: search, sorting and comparison, in one offline file.

    lmrep board runs

It reads logs and configs alone, and no checkpoint, so that hundreds of runs take seconds.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lmrep.analysis.report import metrics, prose, run_data
from lmrep.analysis.report.page import environment, text_of
from lmrep.config.record import flatten_config
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import check_output, write_text
from lmrep.core.messages import counted
from lmrep.storage.workdir import CONFIG

NAME = "board.html"
FIGURES = ("Steps", "Time")  # columns of every run, before those of metrics

log = logging.getLogger(__name__)


def write(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the page of all runs below some folders, and returns its path: `output`, or board.html in the first.

    Raises:
      UserError: there is no run below the folders, or the page cannot be written.
    """
    directories, path = [*workdirs(folders)], output or folders[0] / NAME
    check_output(path)
    runs = [run for directory in directories if (run := _run(directory, path.parent))]
    if not runs:
        raise UserError(f"there is no run in {', '.join(map(str, folders))}; expected folders with a {CONFIG}, which "
                        "lmrep train --workdir=FOLDER/NAME writes")
    columns = dict.fromkeys([*FIGURES, *sorted({name for run in runs for name in run["figures"]} - {*FIGURES})])
    same = {name: value for name, value in runs[0]["config"].items()
            if all(run["config"].get(name) == value for run in runs)}
    for run in runs:  # what all have in common is written once
        run["config"] = {name: value for name, value in run["config"].items() if name not in same}
    write_text(path, environment().get_template("board.html.j2").render(
        runs=runs, columns=columns, same=same, script=text_of("board.js"), title=counted(len(runs), "run"),
        configs=[run["config"] for run in runs]))
    return path


def workdirs(folders: Sequence[Path]) -> Iterator[Path]:
    """Yields the workdirs below some folders, in the order of their names. Raises UserError where there is no such
    folder."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; expected one that runs are in")
        for directory, names, files in os.walk(folder):
            names.sort()
            if CONFIG in files:
                names.clear()  # what is in a workdir belongs to its run
                yield Path(directory)


def _run(directory: Path, start: Path) -> dict[str, Any] | None:
    """Reads a row of the table; None, with a warning, for a run that cannot be read. Paths are relative to `start`."""
    label = os.path.relpath(directory, start)
    try:
        run = run_data.read_logs(directory, label)
    except (UserError, RunFault) as error:
        log.warning("%s is left out: %s", directory, error)
        return None
    figures = {"Steps": (run.step, f"{run.step:,} of {run.experiment.steps:,}")}
    if seconds := run_data.seconds(run):
        figures["Time"] = seconds, prose.duration(seconds)
    curves = []
    for name, metric in {**metrics.headlines(run), "loss": metrics.COMMON["loss"]}.items():
        value = run.last("validation", name)
        if value is None or not math.isfinite(value):
            continue
        figures[metric.title] = value, f"{value:{metric.format}}"
        points = [(line["step"], line[name]) for line in run.validation if math.isfinite(line.get(name, math.nan))]
        curves.append((metric.title, points))
    return {
        "label": label, "report": f"{label}/report.html" if (directory / "report.html").is_file() else "",
        "subject": f"{run.stage.objective_name}, {run.experiment.model['name']}", "figures": figures,
        "curve": _curve(*curves[0]) if curves else None,
        "config": {name: value if isinstance(value, str) else json.dumps(value)
                   for name, value in flatten_config(run.experiment).items()}}


def _curve(title: str, points: Sequence[tuple[float, float]]) -> dict[str, str] | None:
    """Returns the title and the path of a small curve, 100 x 24 pixels; None for fewer than two points."""
    if len({step for step, _ in points}) < 2:
        return None
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*points, strict=True))
    places = [(2 + 96 * (x - x0) / (x1 - x0), 22 - 20 * (y - y0) / (y1 - y0 or 1)) for x, y in points]
    places = places[:1] + [after for before, after in pairwise(places) if after[0] > before[0]]
    return {"title": title, "path": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)}
