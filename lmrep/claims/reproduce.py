"""Trains the runs of a claim, measures its rows, and compares the result with the paper.

    WORKDIR/
      claim.json               what is trained and measured
      seed=0/NAME/             a run, whose output is in NAME.log and whose end in NAME.json
      seed=0/NAME.measured.json   its metrics by the measure of the claim
      results.json, table.md   the table
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.analysis.sweep import Ending, complete, read_ending
from lmrep.claims import claim as claims
from lmrep.claims.claim import MINIATURE, ORDERS, Claim
from lmrep.claims.statistics import REPRODUCED, UNRESOLVED, seeds_to_resolve, verdict
from lmrep.config import json_files
from lmrep.core.errors import Stopped, UserError
from lmrep.core.files import write_json, write_text
from lmrep.core.host import cores, processor
from lmrep.core.progress import StatusLine, duration
from lmrep.experiment import checks
from lmrep.interop import chain as chains
from lmrep.interop.chain import ChainRun
from lmrep.metrics.paired import Difference, difference
from lmrep.storage import workdir
from lmrep.sweeps import process

SPECIFICATION, RESULTS, TABLE = "claim.json", "results.json", "table.md"


class RowResult(NamedTuple):
    """A row of the table.

    Attributes:
      name: of the row.
      values: {seed: value in units of the table}.
      difference: from the row that it is compared with, over the seeds that both have; None where that is not known.
      verdict: on what is claimed; "" where nothing is.
      seeds_needed: seeds that would resolve the claim; None where it is resolved, or that is not known.
    """

    name: str
    values: Mapping[int, float]
    difference: Difference | None = None
    verdict: str = ""
    seeds_needed: int | None = None


class Result(NamedTuple):
    """The results of a claim; `print` shows the table."""

    claim: Claim
    rows: Sequence[RowResult]
    failures: Sequence[str]  # a line for each run that failed
    missing: int  # runs that are not trained or not measured

    def __str__(self) -> str:
        return table(self)


def reproduce(
    file: Path, directory: Path, *, scale: str = MINIATURE, seeds: Sequence[int] = (0, 1, 2),
    overrides: Mapping[str, str] = {}, budget: float = math.inf, data_dir: str = "", train: bool = True,
) -> Result:
    """Trains and measures what is missing, and compares the rows. The same call continues, and may add seeds.

    Args:
      file: of the claim.
      directory: of the runs.
      scale: a key of the settings of the claim.
      seeds: every run is trained with each of them.
      overrides: FIELD or NAME.FIELD -> value: a field of all runs, or of the run NAME.
      budget: seconds after which no further run is started.
      data_dir: the directory of token stores; "" for the default.
      train: False reads the results so far.

    Raises:
      UserError: the claim or a config is invalid, or the directory holds other runs.
      Stopped: by Ctrl-C or SIGTERM, with everything saved.
    """
    claim = claims.load(file, scale)
    if train:
        _check_directory(directory)
    per_run = _per_run(overrides, claim.runs)
    runs = {seed: chains.resolve(claim.runs, per_run | {f"{name}.seed": str(seed) for name in claim.runs},
                                 directory / f"seed={seed}", file) for seed in seeds}
    _check_specification(directory, {"scale": scale, "runs": json.loads(json.dumps(claim.runs)), "overrides": per_run,
                                     "measure": [claim.measure.metric, dict(claim.measure.evaluate)]}, train)
    failures = []
    if train:
        flags, end = [f"--data_dir={data_dir}"] if data_dir else [], time.monotonic() + budget
        with StatusLine() as status:
            for seed, run in ((seed, run) for seed, chain in runs.items() for run in chain):
                if time.monotonic() < end and (failure := _complete(claim, run, seed, flags, status)):
                    failures.append(failure)
    result = compare(claim, {name: {seed: value for seed in seeds if (value := _value(
        claim, directory / f"seed={seed}" / claim.run_of(name))) is not None} for name in claim.rows})
    result = result._replace(failures=failures, missing=sum(
        _value(claim, Path(run.directory)) is None for chain in runs.values() for run in chain
        if run.name in map(claim.run_of, claim.rows)))
    if train:
        _write(directory, file.stem, scale, result)
    return result


def _check_directory(directory: Path) -> None:
    """Raises UserError if a directory cannot hold the runs of a claim."""
    checks.check_writable(directory)
    for name, what in ((workdir.CONFIG, "a run"), (workdir.SWEEP, "a sweep")):
        if (directory / name).exists():
            raise UserError(f"{directory} holds {what}, not the runs of a claim; give another --workdir")


def _per_run(overrides: Mapping[str, str], runs: Collection[str]) -> dict[str, str]:
    """Returns {NAME.FIELD: value}, in which a field of all runs is a field of each. Raises UserError for a seed."""
    fields = {}
    for path, value in overrides.items():
        name, _, rest = path.partition(".")
        if path == "seed" or (name in runs and rest == "seed"):
            raise UserError(f"--config.{path} is given, and --seeds has the seeds of all runs; leave it out, and give "
                            f"--seeds={value}")
        fields |= {path: value} if name in runs else {f"{run}.{path}": value for run in runs}
    return fields


def _check_specification(directory: Path, specification: dict[str, Any], train: bool) -> None:
    """Writes what a directory holds, or compares it with what it held before. Raises UserError if that differs."""
    before = json_files.read(dict[str, Any], directory / SPECIFICATION)
    if before is None and train:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / SPECIFICATION, specification)
    elif before is None:
        raise UserError(f"there are no runs of a claim in {directory}; correct --workdir, or leave --show out")
    elif changed := [name for name in specification if specification[name] != before.get(name)]:
        raise UserError(f"{directory} holds runs of a claim with other {' and '.join(changed)}; give another --workdir")


def _complete(claim: Claim, run: ChainRun, seed: int, flags: Sequence[str], status: StatusLine) -> str:
    """Trains and measures a run as far as that is not done; returns why that failed, or ""."""
    directory, title = Path(run.directory), f"seed {seed}, {run.name}"
    log, ended = Path(f"{directory}.log"), Path(f"{directory}.json")
    show = (lambda line: status.write(f"{title}: {line}")) if status.every < 1 else (lambda line: None)
    with process.claimed(log) as file:
        if file is None:
            print(f"{title}: another process has it", flush=True)
            return ""
        if not complete(directory, read_ending(ended)):
            fields = [f"--config.{path}={text}" for path, text in run.texts]
            config = f"--config={run.file}{':' * bool(run.argument)}{run.argument}"
            ending = _run(["train", config, *fields, *flags, f"--workdir={directory}"], file, show)
            write_json(ended, ending._asdict())
            if ending.exit_code and not complete(directory, ending):
                return f"{title}: {ending.message} (see {log})"
            print(f"{title}: trained in {duration(ending.seconds)}", flush=True)
        if run.name in map(claim.run_of, claim.rows) and _value(claim, directory) is None:
            words = [f"--{name}={value}" for name, value in claim.measure.evaluate.items()]
            ending = _run(["evaluate", *words, *flags, f"--workdir={directory}"], file, show)
            if ending.exit_code:
                return f"{title}: {ending.message} (see {log})"
            metrics = json.loads((directory / "eval.json").read_text(encoding="utf8"))["metrics"]
            if claim.measure.metric not in metrics:
                return f"{title}: evaluate gives no {claim.measure.metric}; it gives {', '.join(metrics)}"
            write_json(Path(f"{directory}.measured.json"), metrics)
            print(f"{title}: {claim.measure.title} {_value(claim, directory):{claim.measure.format}}", flush=True)
    return ""


def _run(words: Sequence[str], log: Any, show: Callable[[str], None]) -> Ending:
    """Runs a command. Raises Stopped if it was stopped by a signal."""
    ending, stop = process.run(words, log, show)
    if stop:
        raise Stopped("stopped; continue with the same command", stop)
    return ending


def _value(claim: Claim, directory: Path) -> float | None:
    """Returns the measure of a run, in units of the table; None before it is measured."""
    metrics = json_files.read(dict[str, Any], Path(f"{directory}.measured.json"))
    return None if metrics is None else claim.measure.value(float(metrics[claim.measure.metric]))


def compare(claim: Claim, values: Mapping[str, Mapping[int, float]]) -> Result:
    """Compares the rows of a claim, given {row: {seed: value}}."""
    rows = []
    for name, row in claim.rows.items():
        pairs = [(values[name][seed], values[row.against][seed]) for seed in sorted(values[name])
                 if row.against and seed in values[row.against]]
        if not pairs:
            rows.append(RowResult(name, values[name], verdict=UNRESOLVED if row.claimed else ""))
            continue
        these, others = zip(*pairs, strict=True)
        found = difference(these, others, max(1, claim.comparisons))
        judged = verdict(found, ORDERS[row.claimed], row.margin) if row.claimed else ""
        needed = None if judged in ("", REPRODUCED) else seeds_to_resolve(these, others, claim.comparisons)
        rows.append(RowResult(name, values[name], found, judged, needed))
    return Result(claim, rows, (), 0)


# The table


def table(result: Result) -> str:
    """Formats the results as a table in Markdown, with what was claimed and how intervals were made."""
    claim = result.claim
    lines = [f"{claim.paper}: {claim.statement}", "",
             f"| setting | {claim.measure.title} | difference, 95 % interval | paper | paper's difference | verdict |",
             "| --- | --- | --- | --- | --- | --- |", *_lines(result), ""]
    if claim.published:
        lines.append(f"The paper's figures: {claim.published}.")
    if claim.cost:
        lines.append(f"Three seeds take about {claim.cost}.")
    if claim.comparisons > 1:
        lines.append(f"The {claim.comparisons} intervals hold together (Bonferroni): each has {_level(claim)}.")
    lines += [f"failed: {failure}" for failure in result.failures]
    if result.missing:
        lines.append(f"{result.missing} runs are not measured yet; the same command continues")
    return "\n".join(lines)


def _level(claim: Claim) -> str:
    return f"{100 * (1 - 0.05 / claim.comparisons):.4g} %"


def _lines(result: Result) -> Iterator[str]:
    """Yields the lines of the rows."""
    form, rows = result.claim.measure.format, result.claim.rows
    for found in result.rows:
        row, values = rows[found.name], list(found.values.values())
        mean = "" if not values else f"{statistics.fmean(values):{form}}"
        if len(values) > 1:
            mean += f" ± {statistics.stdev(values):{form}}"
        change = against = published = judged = ""
        if found.difference:
            change = f"{found.difference.mean:+{form}}"
            if math.isfinite(found.difference.low):
                change += f" ({found.difference.low:+{form}} to {found.difference.high:+{form}})"
            change += f" from {rows[row.against].title}"
        if row.published is not None:
            published = f"{row.published:g}"
            if row.against and rows[row.against].published is not None:
                against = f"{row.published - rows[row.against].published:+.3g}"
        if row.claimed:
            judged = found.verdict + (f" (about {found.seeds_needed} seeds would)" if found.seeds_needed else "")
        yield f"| {row.title} | {mean} | {change} | {published} | {against} | {judged} |"


def _write(directory: Path, name: str, scale: str, result: Result) -> None:
    """Writes results.json and table.md."""
    rows = {found.name: {"values": {str(seed): value for seed, value in found.values.items()},
                         "difference": found.difference and [
                             value if math.isfinite(value) else str(value) for value in found.difference],
                         "published": result.claim.rows[found.name].published, "verdict": found.verdict}
            for found in result.rows}
    versions = {package: metadata.version(package) for package in ("lmrep", "jax", "jaxlib")}
    write_json(directory / RESULTS, {
        "claim": name, "paper": result.claim.paper, "statement": result.claim.statement, "scale": scale,
        "measure": result.claim.measure.title, "rows": rows, "versions": versions,
        "machine": f"{processor()}, {cores()} cores", "date": time.strftime("%Y-%m-%d")})
    write_text(directory / TABLE, table(result) + "\n")
