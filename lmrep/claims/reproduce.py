"""Trains the runs of a claim, measures its rows, and compares the result with the paper.

    WORKDIR/
      claim.json               what is trained and measured
      seed=0/NAME/             a run, whose output is in NAME.log and whose end in NAME.json
      seed=0/NAME.measured.json   its metrics by the measure of the claim
      timing/NAME/             with --match=time, the first steps of a run, by whose speed its steps are decided
      results.json             values, differences and verdicts, and what they were made with
      report.html              the page that shows them; table.md, table.tex, figure.svg are its parts
"""

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmrep.analysis.sweep import Ending, complete, read_ending
from lmrep.claims import claim as claims
from lmrep.claims import match as matching
from lmrep.claims import results
from lmrep.claims.claim import MINIATURE, ORDERS, Claim
from lmrep.claims.match import STEPS, TIME
from lmrep.claims.page import figure, page
from lmrep.claims.results import Match, Results, RowResult
from lmrep.claims.statistics import ORDERING, UNRESOLVED, seeds_to_resolve, verdict
from lmrep.config import json_files
from lmrep.config.record import choose, suggestion
from lmrep.core.errors import Stopped, UserError
from lmrep.core.files import write_json, write_text
from lmrep.core.host import cores, processor
from lmrep.core.progress import StatusLine, duration
from lmrep.experiment import checks
from lmrep.interop import chain as chains
from lmrep.interop.chain import ChainRun
from lmrep.metrics.paired import difference
from lmrep.planning import run_cost
from lmrep.storage import provenance, workdir
from lmrep.sweeps import process
from lmrep.training.metrics_log import TIMING, TimingLine

SPECIFICATION, RESULTS, TABLE = "claim.json", "results.json", "table.md"
LATEX, FIGURE, PAGE = "table.tex", "figure.svg", "report.html"
PACKAGES = ("lmrep", "jax", "jaxlib")  # whose versions are shown
TIMED_STEPS = 20  # by which the time of a step is measured


class Workdir(NamedTuple):
    """A workdir of the claim, for one seed."""

    name: str
    directory: Path
    words: Sequence[str]  # of the command that makes it


class Result(NamedTuple):
    """What is known so far; `print` shows the table."""

    results: Results
    failures: Sequence[str]  # a line for each run that failed
    missing: int  # runs that are not trained or not measured

    def __str__(self) -> str:
        lines = [results.markdown(self.results), *(f"failed: {failure}" for failure in self.failures)]
        if self.missing:
            lines.append(f"{self.missing} runs are not measured yet; the same command continues")
        return "\n".join(lines)


def reproduce(
    file: Path, directory: Path, *, scale: str = MINIATURE, seeds: Sequence[int] = (0, 1, 2),
    overrides: Mapping[str, str] = {}, budget: float = math.inf, data_dir: str = "", train: bool = True,
    match: str = STEPS,
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
      match: STEPS, a key of `lmrep.claims.match.COSTS`, or TIME: what is equal for all pretraining runs.

    Raises:
      UserError: the claim or a config is invalid, its steps cannot be matched, or the directory holds other runs.
      Stopped: by Ctrl-C or SIGTERM, with everything saved.
    """
    claim, flags = claims.load(file, scale), [f"--data_dir={data_dir}"] if data_dir else []
    if train:
        _check_directory(directory)
    per_run = overrides_by_run(overrides, claim, file, directory)
    if not train and not overrides and (before := json_files.read(_Kept, directory / SPECIFICATION)):
        per_run = before["overrides"]
    matched = _matched(claim, match, directory, train, overrides, flags, lambda: chains.resolve(
        claim.runs, per_run, directory / f"seed={seeds[0]}", file))
    changes = per_run | matching.overrides(matched)
    resolved = {seed: chains.resolve(claim.runs, changes | {f"{name}.seed": str(seed) for name in claim.runs},
                                     directory / f"seed={seed}", file) for seed in seeds}
    for chain in resolved.values() if train else ():
        chains.check_files(chain)
        _check_metric(claim, chain, file)
    runs = {seed: _workdirs(claim, chain, directory / f"seed={seed}") for seed, chain in resolved.items()}
    _check_specification(directory, {"scale": scale, "runs": json.loads(json.dumps(claim.runs)), "overrides": per_run,
                                     "measure": [claim.measure.metric, dict(claim.measure.evaluate)]} | (
                                         {"commands": dict(claim.commands)} if claim.commands else {}) | (
                                         {"match": matched} if matched else {}), train)
    failures = []
    if train:
        end = time.monotonic() + budget
        with StatusLine() as status:
            for seed, run in ((seed, run) for seed, workdirs in runs.items() for run in workdirs):
                if time.monotonic() < end and (failure := _complete(claim, run, seed, flags, status)):
                    failures.append(failure)
                    print(f"failed: {failure}", flush=True)
    values = {name: {seed: value for seed in seeds if (value := _value(
        claim, directory / f"seed={seed}" / claim.run_of(name))) is not None} for name in claim.rows}
    command = _command(file, scale, seeds, overrides or per_run, match)
    content = _results(claim, file.stem, scale, command, compare(claim, values), runs, directory)
    if matched:
        content["match"] = matched
    if train:
        write_json(directory / RESULTS, content)
        for name, text in ((TABLE, results.markdown(content) + "\n"), (LATEX, results.latex(content)),
                           (FIGURE, figure(content)), (PAGE, page(content))):
            write_text(directory / name, text)
    return Result(content, failures, sum(_value(claim, run.directory) is None for workdirs in runs.values()
                                         for run in workdirs if run.name in map(claim.run_of, claim.rows)))


def _workdirs(claim: Claim, chain: Sequence[ChainRun], directory: Path) -> list[Workdir]:
    """Returns the workdirs of one seed in `directory`, in the order in which they can be made. Raises UserError if a
    command names a workdir that the claim lacks."""
    paths = {name: str(directory / name) for name in (*claim.runs, *claim.commands)}
    workdirs = [Workdir(run.name, Path(run.directory), [*_train(run), f"--workdir={run.directory}"]) for run in chain]
    for name, text in claim.commands.items():
        try:
            words = [word.format_map(paths) for word in shlex.split(text)]
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"the command {name} is {text!r}; expected {{NAME}} only for a workdir of the claim "
                            f"({', '.join(paths)}): {error}") from None
        workdirs.append(Workdir(name, Path(paths[name]), words))
    return workdirs


def _check_directory(directory: Path) -> None:
    """Raises UserError if a directory cannot hold the runs of a claim."""
    checks.check_writable(directory)
    for name, what in ((workdir.CONFIG, "a run"), (workdir.SWEEP, "a sweep")):
        if (directory / name).exists():
            raise UserError(f"{directory} holds {what}, not the runs of a claim; give another --workdir")


def overrides_by_run(
    overrides: Mapping[str, str], claim: Claim, file: Path, directory: Path
) -> dict[str, str]:
    """Returns {NAME.FIELD: value}, in which a field without the name of a run is a field of every run whose config has
    it, or of all runs if none has. Raises UserError for a seed."""
    fields, runs, chain = {}, claim.runs, None
    for path, value in overrides.items():
        name, _, rest = path.partition(".")
        if path == "seed" or (name in runs and rest == "seed"):
            raise UserError(f"--config.{path} is given, and --seeds has the seeds of all runs; leave it out, and give "
                            f"--seeds={value}")
        if name in runs:
            fields[path] = value
            continue
        chain = chain or chains.resolve(runs, {}, directory, file)
        having = [run.name for run in chain if _has(run.experiment, path)]
        fields |= {f"{run}.{path}": value for run in having or runs}
    return fields


def _has(config: Any, path: str) -> bool:
    """Tells whether a config has the field at a path such as "data.files"."""
    for name in path.split("."):
        config = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        if name not in config:
            return False
        config = config[name]
    return True


def _check_metric(claim: Claim, chain: Sequence[ChainRun], file: Path) -> None:
    """Raises UserError if `lmrep evaluate` does not give the metric of the claim for a run that a row measures. With
    flags that change what is computed, the metrics are not known before."""
    metric, measured = claim.measure.metric, {claim.run_of(name) for name in claim.rows}
    if not claim.measure.evaluate.keys() <= {"split", "files", "examples", "length", "batch_size"}:
        return
    for run in chain:
        if run.name in measured:
            known = ["loss", *run.experiment.metrics(run.experiment.objective["name"])]
            if metric not in known:
                raise UserError(f"{file}: the measure is the metric {metric!r}, which evaluate does not give for the "
                                f"run {run.name}; it gives {', '.join(known)}{suggestion(metric, known)}")


def commands(claim: Claim) -> list[list[str]]:
    """Returns the commands that make workdirs and measure rows, as words, with {NAME} for workdirs."""
    return [*map(shlex.split, claim.commands.values()), _evaluate(claim)]


def _check_specification(directory: Path, specification: dict[str, Any], train: bool) -> None:
    """Writes what a directory holds, or compares it with what it held before. If the measure alone differs, by more
    than its metric, forgets what was measured: all rows are measured again. Raises UserError if more differs."""
    before = json_files.read(dict[str, Any], directory / SPECIFICATION)
    if before is None and not train:
        raise UserError(f"there are no runs of a claim in {directory}; correct --workdir, or leave --show out")
    changed = [name for name in specification if before and specification[name] != before.get(name)]
    if changed == ["measure"] and train:
        if specification["measure"][1] != before["measure"][1]:  # another metric is in the files already
            print("the measure is not the one of before; the rows are measured again", flush=True)
            for file in directory.glob("seed=*/*.measured.json"):
                file.unlink()
    elif changed:
        held = ", ".join(f"{name}={value}" for name, value in before["overrides"].items()) or "none"
        fix = (f"give the same --config flags ({held})" if changed == ["overrides"] else
               f"they differ in {' and '.join(changed)}")
        raise UserError(f"{directory} holds other runs: {fix}, or another --workdir")
    if train and specification != before:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / SPECIFICATION, specification)


# Equal budgets


class _Kept(TypedDict):
    """The fields of claim.json that are read back."""

    overrides: dict[str, str]  # {NAME.FIELD: value}
    match: NotRequired[Match]


def _matched(
    claim: Claim, by: str, directory: Path, train: bool, overrides: Mapping[str, str], flags: Sequence[str],
    chain: Callable[[], Sequence[ChainRun]],
) -> Match | None:
    """Returns what claim.json holds of --match, or decides it before the first run; None for the steps of the claim.
    Raises UserError if claim.json holds another one."""
    choose(dict.fromkeys((STEPS, *matching.COSTS, TIME)), by, "--match")
    before = json_files.read(_Kept, directory / SPECIFICATION)
    kept = before.get("match") if before else None
    if before is not None and (held := kept["by"] if kept else STEPS) != by:
        raise UserError(f"{directory} holds runs of a claim with --match={held}, not {by}; give that, or another "
                        "--workdir")
    if before is not None or by == STEPS or not train:
        return kept
    match = matching.decide(claim, chain(), by, matching.COSTS.get(
        by, lambda run: [_seconds_per_step(run, directory / "timing" / run.name, flags)]))
    for name in match["steps"]:
        if f"{name}.steps" in overrides and name != match["reference"]:
            raise UserError(f"--config.{name}.steps is given, and --match={by} decides it; leave one of them out")
    print(results.budget(match), flush=True)
    return match


def _seconds_per_step(run: ChainRun, directory: Path, flags: Sequence[str]) -> float:
    """Trains the first steps of a run, and returns the mean time of one without compilation and validation."""
    if len(run.experiment.stages) > 1:
        raise UserError(f"it has {len(run.experiment.stages)} stages, and time is measured of runs of one stage; match "
                        "tokens or flops")
    every = [f"--config.{name}={value}" for name, value in (
        ("steps", TIMED_STEPS), ("evaluation.every", TIMED_STEPS), ("log.every", 1), ("log.report", False))]
    with process.claimed(Path(f"{directory}.log")) as file:
        if file is None:
            raise UserError("another process measures its time; start this one again when that has ended")
        ending = _run([*_train(run), *every, *flags, f"--workdir={directory}"], file, lambda line: None)
    lines = json_files.read_lines(TimingLine, directory / TIMING) if not ending.exit_code else None
    rates = [line["steps_per_second"] for line in (lines.records if lines else ()) if "steps_per_second" in line]
    if not rates:
        raise UserError(f"its time could not be measured: {ending.message} (see {directory}.log)")
    return 1 / rates[-1]


def _complete(claim: Claim, run: Workdir, seed: int, flags: Sequence[str], status: StatusLine) -> str:
    """Makes and measures a workdir as far as that is not done; returns why that failed, or ""."""
    directory, title = run.directory, f"seed {seed}, {run.name}"
    log, ended = Path(f"{directory}.log"), Path(f"{directory}.json")
    show = (lambda line: status.write(f"{title}: {line}")) if status.every < 1 else (lambda line: None)
    with process.claimed(log) as file:
        if file is None:
            print(f"{title}: another process has it", flush=True)
            return ""
        if not complete(directory, read_ending(ended)):
            if status.every >= 1:
                print(f"{title}: the output is in {log}", flush=True)
            ending = _run([*run.words, *flags], file, show)
            write_json(ended, ending._asdict())
            if ending.exit_code and not complete(directory, ending):
                return f"{title}: {ending.message} (see {log})"
            done = "trained" if run.words[0] == "train" else "made"
            print(f"{title}: {done} in {duration(ending.seconds)}", flush=True)
        if run.name in map(claim.run_of, claim.rows) and _value(claim, directory) is None:
            ending = _run([*_evaluate(claim), *flags, f"--workdir={directory}"], file, show)
            if ending.exit_code:
                return f"{title}: {ending.message} (see {log})"
            metrics = json.loads((directory / "eval.json").read_text(encoding="utf8"))["metrics"]
            if claim.measure.metric not in metrics:
                return f"{title}: evaluate gives no {claim.measure.metric}; it gives {', '.join(metrics)}"
            write_json(Path(f"{directory}.measured.json"), metrics)
            print(f"{title}: {claim.measure.title} {_value(claim, directory):{claim.measure.format}}", flush=True)
    return ""


def _train(run: ChainRun) -> list[str]:
    """Returns the command that trains a run, without its workdir."""
    return ["train", f"--config={run.file}{':' * bool(run.argument)}{run.argument}",
            *(f"--config.{path}={text}" for path, text in run.texts)]


def _evaluate(claim: Claim) -> list[str]:
    """Returns the command that measures a run, without its workdir."""
    return ["evaluate", *(f"--{name}={value}" for name, value in claim.measure.evaluate.items())]


def _run(words: Sequence[str], log: Any, show: Callable[[str], None]) -> Ending:
    """Runs a command. Raises Stopped if it was stopped by a signal."""
    ending, stop = process.run(words, log, show)
    if stop:
        raise Stopped("stopped; continue with the same command", stop)
    return ending


def _value(claim: Claim, directory: Path) -> float | None:
    """Returns the measure of a run, in units of the table; None before it is measured."""
    value = (json_files.read(dict[str, Any], Path(f"{directory}.measured.json")) or {}).get(claim.measure.metric)
    return None if value is None else claim.measure.value(float(value))


def compare(claim: Claim, values: Mapping[str, Mapping[int, float]]) -> dict[str, RowResult]:
    """Compares the rows of a claim, given {row: {seed: value}}."""
    rows = {}
    for name, row in claim.rows.items():
        pairs = [(values[name][seed], values[row.against][seed]) for seed in sorted(values[name])
                 if row.against and seed in values[row.against]]
        these, others = [*zip(*pairs, strict=True)] or ((), ())
        found = difference(these, others, max(1, claim.comparisons)) if pairs else None
        sign = ORDERS.get(row.claimed, 0)
        judged = "" if not row.claimed else verdict(found, sign, row.margin) if found else UNRESOLVED
        needed = seeds_to_resolve(these, others, claim.comparisons, -sign * row.margin) if judged in (
            ORDERING, UNRESOLVED) else None
        rows[name] = RowResult(
            title=row.title, against=row.against, claimed=row.claimed, margin=row.margin, published=row.published,
            run=claim.run_of(name), values={str(seed): _json(value) for seed, value in values[name].items()},
            difference=found and tuple(map(_json, found)), verdict=judged, seeds_needed=needed)
    return rows


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# The files


def _command(file: Path, scale: str, seeds: Sequence[int], overrides: Mapping[str, str], match: str) -> str:
    """Returns the command line of a claim."""
    known = file in claims.installed().values()
    numbers = f"{seeds[0]}-{seeds[-1]}" if [*seeds] == [*range(seeds[0], seeds[-1] + 1)] else ",".join(map(str, seeds))
    return shlex.join([
        "lmrep", "reproduce", file.stem if known else f"--config={file}", f"--workdir=claims/{file.stem}",
        f"--seeds={numbers}", *([] if scale == MINIATURE else [f"--scale={scale}"]),
        *([] if match == STEPS else [f"--match={match}"]),
        *(f"--config.{path}={value}" for path, value in overrides.items())])


def _results(
    claim: Claim, name: str, scale: str, command: str, rows: Mapping[str, RowResult],
    runs: Mapping[int, Sequence[Workdir]], directory: Path,
) -> Results:
    """Returns the content of results.json, with times, versions and machine from the files of the runs."""
    starts, known = [], {}
    for seed, workdirs in runs.items():
        for run in workdirs:
            measured = run.name in map(claim.run_of, claim.rows)
            commands = [run.words, *([[*_evaluate(claim), f"--workdir={run.directory}"]] if measured else [])]
            entry = known.setdefault(run.name, {"seconds": {}, "commands": [
                shlex.join(["lmrep", *words]).replace(str(directory), f"claims/{name}") for words in commands]})
            if cost := run_cost.read(run.directory) if run.words[0] == "train" else None:
                entry["seconds"][str(seed)] = round(cost.seconds, 1)
            if lines := json_files.read_lines(provenance.Start, run.directory / provenance.FILE):
                starts += lines.records
    start = max(starts, key=lambda line: line["time"], default={})
    devices, versions = start.get("devices", {"platform": "cpu"}), start.get("versions", {})
    return Results(
        claim=name, paper=claim.paper, statement=claim.statement, published=claim.published, cost=claim.cost,
        scale=scale, command=command, rows=dict(rows), runs=known,
        measure={"title": claim.measure.title, "metric": claim.measure.metric, "format": claim.measure.format,
                 "evaluate": dict(claim.measure.evaluate)},
        seconds=math.fsum(seconds for run in known.values() for seconds in run["seconds"].values()),
        versions={package: versions[package] for package in PACKAGES if versions.get(package)},
        processor=processor() if devices["platform"] == "cpu" else f"{devices['count']} x {devices['kind']}",
        cores=start.get("cores", cores()), date=start.get("time", time.strftime("%Y-%m-%d"))[:10])
