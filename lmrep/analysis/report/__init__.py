"""One offline page of one or several runs: what was trained, how good it is, what it cost, how to repeat it.

    from lmrep.analysis import report
    report.write(["runs/quickstart"], data_dir="~/.cache/lmrep")

The page is one file with nothing to fetch. All that it says comes from the workdirs' files; where a file is missing or
damaged, the page says so.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from lmrep.analysis.report.answers import ask
from lmrep.analysis.report.facts import gather
from lmrep.analysis.report.page import render
from lmrep.core.errors import UserError
from lmrep.storage.workdir import write_text

NAME = "report.html"
LARGEST = 2_000_000  # bytes of a page
MAPS = 900_000  # bytes of them for attention maps

log = logging.getLogger(__name__)


def write(
    directories: Sequence[str | os.PathLike], output: str | os.PathLike | None = None, *,
    data_dir: str | os.PathLike,
) -> Path:
    """Writes the report and returns where.

    Args:
      directories: workdirs.
      output: the file; by default report.html in the workdir, or here for several.
      data_dir: where token stores live. None is made: without them the page lacks data statistics and held-out text.

    Raises:
      UserError: there is no run in a directory, or too many for a page.
      RunFault: a config.json is damaged; the page cannot be written.
    """
    places = [Path(directory) for directory in directories]
    if not places:
        raise UserError("a report needs a run: give one or several workdirs")
    runs = []
    for number, (place, label) in enumerate(zip(places, labels(places), strict=True), 1):
        log.info("report: reading %s and asking its network, %d of %d", label, number, len(places))
        facts = gather(place, label, Path(data_dir).expanduser())
        runs.append((facts, ask(facts, MAPS // len(places))))
    page = render(runs)
    if (size := len(page.encode())) >= LARGEST:
        raise UserError(f"the report of these {len(runs)} runs would have {size / 1e6:.1f} MB, and pages stay under "
                        f"{LARGEST / 1e6:g} MB; give fewer runs")
    path = Path(output) if output else places[0] / NAME if len(places) == 1 else Path(NAME)
    if not path.parent.is_dir():
        raise UserError(f"the report cannot be written to {path}: there is no directory {path.parent}")
    write_text(path, page)
    return path


def labels(places: Sequence[Path]) -> list[str]:
    """The runs' names: the last parts of their paths, as many as tell them apart."""
    parts = [place.resolve().parts for place in places]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError("one workdir was given twice; name each once")
