"""One offline page about one or several runs: what was trained, how well, at what cost, and how to reproduce it.

    from lmrep.analysis import report
    report.write(["runs/quickstart"], data_dir="~/.cache/lmrep")

The page is one file without external references. Its content comes from the files of the workdirs; what is missing or
damaged there is reported on the page.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmrep.analysis.report.page import render
from lmrep.analysis.report.predictions import predict
from lmrep.analysis.report.run_data import read
from lmrep.core.errors import UserError
from lmrep.core.files import check_output, write_text
from lmrep.experiment.config import read_run

NAME = "report.html"
MAX_BYTES = 2_000_000  # of a page
ATTENTION_BYTES = 900_000  # of attention probabilities

log = logging.getLogger(__name__)


def write(
    directories: Sequence[str | os.PathLike], output: str | os.PathLike | None = None, *,
    data_dir: str | os.PathLike,
) -> Path:
    """Writes the report and returns its path.

    Args:
      directories: workdirs.
      output: the file; by default report.html in the workdir, or in the current directory for several.
      data_dir: where token stores are. None is built: without them the page has no data statistics and no predictions
        for validation text.

    Raises:
      UserError: there is no run in a directory, or there are too many for a page.
      RunFault: a config.json is damaged.
    """
    workdirs = [Path(directory) for directory in directories]
    if not workdirs:
        raise UserError("a report needs one or several workdirs")
    path = Path(output) if output else workdirs[0] / NAME if len(workdirs) == 1 else Path(NAME)
    if output or path.parent.is_dir():  # without the directory there is no run, which is said below
        check_output(path)
    for workdir in workdirs:  # before any work on the first
        read_run(workdir)
    runs = []
    for number, (workdir, label) in enumerate(zip(workdirs, labels(workdirs), strict=True), 1):
        log.info("report: reading %s and running its network, %d of %d", label, number, len(workdirs))
        run = read(workdir, label, Path(data_dir))
        runs.append(replace(run, predictions=predict(run, ATTENTION_BYTES // len(workdirs))))
    page = render(runs)
    if (size := len(page.encode())) >= MAX_BYTES:
        raise UserError(f"the report of these {len(runs)} runs would have {size / 1e6:.1f} MB; the limit is "
                        f"{MAX_BYTES / 1e6:g} MB; give fewer runs")
    write_text(path, page)
    return path


def labels(workdirs: Sequence[Path]) -> list[str]:
    """Names of the runs: the shortest ends of their paths that differ."""
    parts = [Path(os.path.realpath(workdir)).parts for workdir in workdirs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError("one workdir was given twice; name each once")
