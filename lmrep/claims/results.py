"""The results of a claim: what results.json holds, and the same as a table in Markdown and in LaTeX."""

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from lmrep.claims.claim import MINIATURE, ORDERS
from lmrep.config import json_files
from lmrep.config.json_files import Count, Measured, Number
from lmrep.core.messages import counted
from lmrep.core.progress import duration

FOLDER = "results"  # beside the claims of the package: their results in this repository
TEX = {**{character: f"\\{character}" for character in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
       "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "×": r"$\times$"}
WIDTHS = (0.20, 0.12, 0.22, 0.085, 0.14, 0.065, 0.09)  # of the columns in LaTeX, in widths of the text


class RowResult(TypedDict):
    """A row of the table: the fields of a `Row`, and what was measured."""

    title: str
    against: str
    claimed: str
    margin: Number
    published: Number | None
    run: str  # that is measured
    values: dict[str, Measured]  # {seed: value in units of the table}
    # The difference from `against` over the seeds that both have, and the ends of its interval; None without any.
    difference: tuple[Measured, Measured, Measured] | None
    verdict: str  # on what is claimed; "" where nothing is
    seeds_needed: Count | None  # that would resolve the claim; None where it is resolved, or that is not known


class RunResult(TypedDict):
    """A run of the claim."""

    commands: list[str]  # that train it with the first seed, and measure it
    seconds: dict[str, Number]  # {seed: time of training and validation}


class MeasureResult(TypedDict):
    """The fields of a `Measure`, but for its function."""

    title: str
    metric: str
    evaluate: dict[str, str]
    format: str


class Match(TypedDict):
    """The equal budget of --match, as `lmrep.claims.match` decides it."""

    by: str  # tokens, flops or time
    reference: str  # the run whose budget the others get
    budget: Number  # tokens with padding, FLOPs, or seconds
    steps: dict[str, Count]  # of each pretraining run behind a row, the reference first


class Results(TypedDict):
    """results.json. Versions, machine and date are those of the last start of a run."""

    claim: str
    paper: str
    statement: str
    published: str
    cost: str
    scale: str
    command: str
    measure: MeasureResult
    rows: dict[str, RowResult]
    runs: dict[str, RunResult]
    seconds: Number  # of all runs
    versions: dict[str, str]
    processor: str
    cores: Count
    date: str
    match: NotRequired[Match]  # without it, the steps are those of the claim


def of_package(claim: Path) -> Results | None:
    """Reads the results of a claim of the package in this repository, given its file; None where there are none."""
    return json_files.read(Results, claim.parent / FOLDER / f"{claim.stem}.json")


def seeds(results: Results) -> list[str]:
    """Returns all seeds with a value."""
    return sorted({seed for row in results["rows"].values() for seed in row["values"]}, key=int)


def state(results: Results | None) -> str:
    """Describes the verdicts in a line, such as "2 reproduced, 1 ordering only (3 seeds, 2026-11-28)"."""
    if results is None:
        return "not run here"
    counts = Counter(row["verdict"] for row in results["rows"].values() if row["verdict"])
    scale = "" if results["scale"] == MINIATURE else f", scale {results['scale']}"
    return (", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            + f" ({counted(len(seeds(results)), 'seed')}, {results['date']}{scale}"
            + (f", equal {results['match']['by']})" if "match" in results else ")"))


def cells(results: Results) -> list[list[str]]:
    """Returns the rows of the table as text, the head first; without the paper's columns if it has no figures."""
    table = [["setting", results["measure"]["title"], f"difference{_from(compared(results))}, 95 % interval", "claimed",
              "verdict", "paper", "paper's difference"], *_rows(results)]
    has_figures = any(row["published"] is not None for row in results["rows"].values())
    return table if has_figures else [row[:-2] for row in table]


def compared(results: Results) -> str:
    """Returns the title of the row that all others are compared with; "" where there are several."""
    titles = {results["rows"][row["against"]]["title"] for row in results["rows"].values() if row["against"]}
    return titles.pop() if len(titles) == 1 else ""


def _from(title: str) -> str:
    return f" from {title}" if title else ""


def _rows(results: Results) -> Iterator[list[str]]:
    form, rows = results["measure"]["format"], results["rows"]
    for row in rows.values():
        values = [*map(float, row["values"].values())]
        mean = f"{statistics.fmean(values):{form}}" if values else ""
        if len(values) > 1:
            mean += f" ± {statistics.stdev(values):{form}}"
        change = against = ""
        if row["difference"]:
            difference, low, high = map(float, row["difference"])
            interval = f" ({low:+{form}} to {high:+{form}})" if math.isfinite(low) else ""
            change = f"{difference:+{form}}{interval}" + ("" if compared(results) else _from(
                rows[row["against"]]["title"]))
        other = rows[row["against"]]["published"] if row["against"] else None
        if None not in (row["published"], other):
            against = f"{row['published'] - other:+.3g}"
        needed = f" (about {row['seeds_needed']} seeds would resolve it)" if row["seeds_needed"] else ""
        published = "" if row["published"] is None else f"{row['published']:g}"
        yield [row["title"], mean, change, claimed(row), row["verdict"] + needed, published, against]


def claimed(row: RowResult) -> str:
    """Describes the side on which the paper has the difference, such as "below", or "below +0.02" with a margin."""
    return f"{row['claimed']} {-ORDERS[row['claimed']] * row['margin']:+g}" if row["margin"] else row["claimed"]


def notes(results: Results) -> list[str]:
    """Returns sentences beneath the table: what the figures are of, how intervals were made, and what it took."""
    number = sum(bool(row["claimed"]) for row in results["rows"].values())
    return [
        *([f"The paper's figures: {results['published']}."] if results["published"] else []),
        *([budget(results["match"])] if "match" in results else []),
        f"Mean ± standard deviation over {counted(len(seeds(results)), 'seed')}; intervals of Student's t over the "
        "differences between runs of one seed.",
        *([f"The {number} intervals hold together at 95 % (Bonferroni): each has {100 * (1 - 0.05 / number):.4g} %."]
          if number > 1 else []),
        *([f"Not as the claim says: {changes}."] if (changes := ", ".join(filter(None, (
            word.partition("--config.")[2] for word in shlex.split(results["command"]))))) else []),
        f"Scale {results['scale']}; training and validation took {duration(results['seconds'])} in all"
        + (f"; three seeds take about {results['cost']}." if results["cost"] else "."),
        ", ".join([results["processor"], counted(results["cores"], "core"), results["date"], *(
            f"{package} {version}" for package, version in results["versions"].items())]) + "."]


def budget(match: Match) -> str:
    """Describes the budget of pretraining, and the steps that each run gets, in a sentence."""
    unit = {"tokens": "tokens, with padding", "flops": "training FLOPs", "time": "seconds, without validation"}[
        match["by"]]
    return (f"Budget of pretraining, equal for all rows: {match['budget']:,.4g} {unit}, as in the run "
            f"{match['reference']}. " + ", ".join(f"{name}: {counted(steps, 'step')}"
                                                  for name, steps in match["steps"].items()) + ".")


def markdown(results: Results) -> str:
    """Formats the table in Markdown, with notes."""
    head, *rows = cells(results)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"{results['paper']}: {results['statement']}", "", *lines, "", *notes(results)])


def latex(results: Results) -> str:
    """Formats the table in LaTeX, as wide as the text, for the packages array and booktabs."""
    table = cells(results)
    head, *rows = (" & ".join(map(tex, row)) + r" \\" for row in table)
    widths = WIDTHS[:len(table[0])]
    columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{width / sum(widths) * sum(WIDTHS):.3g}\linewidth}}"
                      for width in widths)
    return "\n".join([
        r"\begin{table}", r"\centering\footnotesize\setlength{\tabcolsep}{2pt}",
        rf"\caption{{{tex(results['paper'])}: {tex(results['statement'])}}}",
        rf"\label{{tab:{_label(results['claim'])}}}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule",
        r"\end{tabular}", r"\par\smallskip", r"\begin{minipage}{\linewidth}", *map(tex, notes(results)),
        r"\end{minipage}", r"\end{table}", ""])


def _label(name: str) -> str:
    return re.sub(r"[^\w.:]|_", "-", name)


def tex(text: Any) -> str:
    """Escapes a text for LaTeX, with signs of numbers in mathematics."""
    escaped = "".join(TEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])[+-](?=\d)", r"$\g<0>$", escaped)
