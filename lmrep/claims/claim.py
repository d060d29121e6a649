"""What a file of `experiments/claims/` states: runs, rows of a table, and what the paper says of their order."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.config import loading
from lmrep.config.record import choose
from lmrep.core.errors import UserError
from lmrep.experiment import page_files

DEFINES = "def get_claim("
MINIATURE = "miniature"
SCALES = {MINIATURE: "", "single": "a night on one GPU, planned", "paper": ""}  # the cost, where no claim states it
ORDERS = {"above": 1, "below": -1}  # the sign of a row's difference from the row that it is compared with


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      title: what it is.
      against: the row that it is compared with; "" for one that others are compared with.
      claimed: "above" or "below" if the paper has its measure above or below that row's; "" where it makes no claim.
      margin: the difference that still counts as none, in units of the table: "above" with a margin says "at least as
        good", and is reproduced if the interval lies above -margin.
      published: the paper's figure, in units of the table; None if it has none.
      run: the run that is measured; "" for the one of the row's name.
    """

    title: str
    against: str = ""
    claimed: str = ""
    margin: float = 0.0
    published: float | None = None
    run: str = ""


class Measure(NamedTuple):
    """The number by which rows are compared. Every row is evaluated in the same way.

    Attributes:
      title: of the table's column, with its unit.
      metric: among those of `lmrep evaluate`.
      evaluate: {flag of `lmrep evaluate`: value}, such as {"split": "test"}.
      value: from the metric to the number in the table, such as `math.exp` for a perplexity.
      format: of the number.
    """

    title: str
    metric: str
    evaluate: Mapping[str, str] = {}
    value: Callable[[float], float] = float
    format: str = ".1f"


class Claim(NamedTuple):
    """A claim of a paper.

    Attributes:
      paper: authors, year, and the table or figure.
      statement: what is claimed, in a sentence.
      runs: {name: "FILE.py:CHOICES" or ("FILE.py:CHOICES", {field: value})}, as `get_chain` returns them: in the order
        of training, with {NAME} for the workdir of an earlier run. Rows may share runs.
      rows: {name: row}.
      measure: the number in the table.
      published: what the paper's figures are of, such as "test perplexity, Penn Treebank"; "" if there are none.
      cost: what the miniature takes with three seeds, such as "20 minutes on two cores". `load` replaces it by that of
        `SCALES` at another scale.
      commands: {name: the words of a command that makes the workdir {NAME} after the runs are trained, such as
        "prune --workdir={full} --output={half} --fraction=0.5"}. Rows may measure it as a run.
    """

    paper: str
    statement: str
    runs: Mapping[str, Any]
    rows: Mapping[str, Row]
    measure: Measure
    published: str = ""
    cost: str = ""
    commands: Mapping[str, str] = {}

    def run_of(self, name: str) -> str:
        """Returns the name of the run that a row measures."""
        return self.rows[name].run or name

    @property
    def comparisons(self) -> int:
        """The number of rows about which something is claimed."""
        return sum(bool(row.claimed) for row in self.rows.values())


def installed() -> dict[str, Path]:
    """Returns {name: file} of the claims that come with the package."""
    return {Path(name).stem: file for name, file in page_files.installed((DEFINES,)).items()}


def find(name: str) -> Path:
    """Returns the file of a claim: of the package by its name, with a colon or an underscore between paper and table,
    or at a path. Raises UserError if there is none."""
    files = installed()
    file = files.get(name.replace(":", "_"), Path(name))
    if not file.is_file():
        raise UserError(f"there is no claim {name!r}; expected a file that defines get_claim, or one of "
                        f"{', '.join(files)}")
    return file


def at_scale(scale: str, **settings: Any) -> Any:
    """Returns the settings of a scale: `at_scale(scale, miniature={"steps": 500}, paper={})`. Raises UserError for a
    scale that has none."""
    return choose(settings, scale, "scale of the claim")


def one_gpu(steps: int, learning_rate: float = 5e-4, **fields: Any) -> dict[str, Any]:
    """Returns fields that fit a page of a Transformer to a night on one GPU: in bfloat16, a batch in two halves, and a
    warm-up over a tenth of the steps, for rates above the papers' of longer runs.

    Args:
      steps: the number of updates.
      learning_rate: its peak.
      **fields: others of the config, such as batch_size.
    """
    return {"steps": steps, "optimizer.learning_rate": learning_rate, "optimizer.schedule.warmup_fraction": 0.1,
            "execution.dtype": "bfloat16", "microbatches": 2, **fields}


def medium(steps: int, learning_rate: float = 5e-4, **fields: Any) -> dict[str, Any]:
    """Returns `one_gpu` with the network of BERT-medium (Turc et al., 2019): eight layers of width 512."""
    return {"model.layers": 8, "model.width": 512, "model.heads": 8, "model.mlp": 2048,
            **one_gpu(steps, learning_rate, **fields)}


def load(file: Path, scale: str = MINIATURE) -> Claim:
    """Returns `get_claim(scale)` of a file. Raises UserError if the file cannot be executed, has no such scale, or
    returns no valid claim."""
    claim = loading.load_claim(file, scale)
    if not isinstance(claim, Claim):
        raise UserError(f"{file}: get_claim returned {claim!r}; expected a lmrep.claims.Claim")
    runs = loading.named_runs(claim.runs, f"{file}: the runs are", 'expected {name: "FILE.py:choices"}, or {name: '
                              '("FILE.py:choices", {field: value})}')
    if fault := _fault(claim):
        raise UserError(f"{file}: {fault}")
    return claim._replace(runs=runs, cost=claim.cost if scale == MINIATURE else SCALES.get(scale, claim.cost))


def _fault(claim: Claim) -> str:
    """Describes what is wrong with a claim; "" if nothing is."""
    if twice := {*claim.runs} & {*claim.commands}:
        return f"the names {', '.join(twice)} are of a run and of a command"
    for name, row in claim.rows.items():
        if claim.run_of(name) not in (known := [*claim.runs, *claim.commands]):
            return f"row {name!r} measures the run {claim.run_of(name)!r}; the runs are {', '.join(known)}"
        if row.claimed and row.claimed not in ORDERS:
            return f"row {name!r} claims {row.claimed!r}; expected {' or '.join(ORDERS)}"
        if (row.claimed or row.against) and (row.against not in claim.rows or row.against == name):
            return (f"row {name!r} is compared with {row.against!r}; expected another row: "
                    f"{', '.join(repr(other) for other in claim.rows if other != name)}")
        if row.margin < 0 or not math.isfinite(row.margin):
            return f"row {name!r} has the margin {row.margin}; expected a finite number of 0 or more"
    if not claim.published and any(row.published is not None for row in claim.rows.values()):
        return ("rows have published figures, and the claim does not say of what; give it published, such as "
                "published=\"accuracy on MNLI, in %\"")
    return "" if claim.rows else "the claim has no rows"
