"""The results of a sweep: the score of each run, mean and standard deviation over seeds, and the best setting."""

import csv
import fnmatch
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.analysis.report.metrics import VALIDATION_SETTINGS
from lmrep.config import json_files
from lmrep.config.json_files import Number
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import MANIFEST, write_json, write_text
from lmrep.experiment.sweep import Run, Setting, SweepSpec
from lmrep.metrics import Metric, judged, paired
from lmrep.storage.workdir import holder, read_config
from lmrep.training.metrics_log import validations

TABLE, RECORD = "results.tsv", "results.json"
FINISHED, FAILED, RUNNING, UNFINISHED = "finished", "failed", "running", "unfinished"
STOPPED = (130, 143)  # exit codes of a run that was stopped and can continue
REFUSED = 2  # the exit code of a run that was refused before it began
MAX_REPORTED = 20  # runs on a page


class Ending(NamedTuple):
    """How a training process ended: its exit code (negative: the signal that killed it), the seconds that it took, and
    its error message."""

    exit_code: int
    seconds: Number
    message: str = ""

    @property
    def fault(self) -> bool:
        """Whether the run failed, and would fail again."""
        return self.exit_code not in (0, REFUSED, *STOPPED)


class Result(NamedTuple):
    """The state and the score of a run."""

    run: Run  # of the spec
    state: str  # FINISHED, FAILED, RUNNING (in some process) or UNFINISHED
    value: float | None = None  # of the metric on the validation split; None where it is not known
    # whether it ended at or below the baseline of the trivial predictor; None where none was measured
    at_baseline: bool | None = None
    reason: str = ""  # why it counts as failed, or ""
    ending: Ending | None = None  # of its last training process, if that has ended


class Summary(NamedTuple):
    """The results of a setting, one for each seed."""

    setting: Setting  # of the spec
    results: Sequence[Result]

    @property
    def values(self) -> list[float]:
        """The values of the finished runs."""
        return [*self.by_seed.values()]

    @property
    def by_seed(self) -> dict[int, float]:
        """{seed: value} of the finished runs."""
        return {run.run.seed: run.value for run in self.results if run.state == FINISHED and run.value is not None}

    @property
    def mean(self) -> float | None:
        """The mean of `values`; None without any."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation of `values`; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def count(self, state: str) -> int:
        """The number of runs in a state."""
        return sum(result.state == state for result in self.results)

    @property
    def at_baseline(self) -> int:
        """The number of finished runs that ended at or below the baseline."""
        return sum(result.at_baseline is True for result in self.results)


# Runs


def ending_file(directory: Path, run: Run) -> Path:
    """Returns the path of the file with the `Ending` of a run, as JSON."""
    return directory / f"{run.name}.json"


def log_file(directory: Path, run: Run) -> Path:
    """Returns the path of the file with the output of a run."""
    return directory / f"{run.name}.log"


def result(directory: Path, spec: SweepSpec, run: Run, metric: str = "", best: bool | None = None) -> Result:
    """Reads the state and the score of a run from its files.

    Args:
      metric: the validation metric; by default the spec's.
      best: take the run's best validation by that metric instead of its last one; None: as in the spec.
    """
    workdir, metric = directory / run.name, metric or spec.metric
    ending = read_ending(ending_file(directory, run))
    if not complete(workdir, ending):
        if holder(workdir):
            return Result(run, RUNNING, ending=ending)
        if ending and ending.fault:
            return Result(run, FAILED, reason=ending.message, ending=ending)
        return Result(run, UNFINISHED, ending=ending)
    try:
        lines = [{name: float(value) for name, value in line.items() if name != "split"}  # "nan" is a number too
                 for line in validations(workdir) if metric in line]
    except UserError as error:
        return Result(run, FINISHED, reason=str(error), ending=ending)
    if not lines:
        return Result(run, FINISHED, ending=ending)
    last = lines[-1]
    if spec.loads_best if best is None else best:
        sign = 1 if spec.metrics[metric].higher_is_better else -1
        last = max(lines, key=lambda line: -math.inf if math.isnan(line[metric]) else sign * line[metric])
    if not math.isfinite(last[metric]):
        return Result(run, FAILED, last[metric], reason=f"{metric} is {last[metric]}", ending=ending)
    at_baseline, reason = _against_baseline(last, metric, spec.metrics)
    return Result(run, FINISHED, last[metric], at_baseline, reason, ending)


def complete(workdir: Path, ending: Ending | None) -> bool:
    """Returns whether a run has trained to its last step."""
    try:
        steps = read_config(workdir)["config"].get("steps")
    except (UserError, RunFault):
        return False
    return (ending is not None and ending.exit_code == 0) or (workdir / "checkpoints" / str(steps) / MANIFEST).exists()


def read_ending(file: Path) -> Ending | None:
    """Reads how a training process ended; None where that is not known."""
    try:
        return json_files.read(Ending, file)
    except UserError:
        return None


def _against_baseline(
    line: Mapping[str, float], metric: str, metrics: Mapping[str, Metric]
) -> tuple[bool | None, str]:
    """Compares a validation with the baseline of `metric` or, if it has none, with the baselines of all metrics.

    Returns:
      Whether the run is no better than a baseline, None where no baseline was measured; and that comparison in words.
    """
    judgements = judged(metrics, line.get)
    judgements = {metric: judgements[metric]} if metric in judgements else judgements
    for name, judgement in judgements.items():
        if not judgement.better:
            show = judgement.metric.format
            return True, (f"{name} {judgement.value:{show}} is no better than {judgement.trivial:{show}} "
                          f"({judgement.against})")
    return (False, "") if judgements else (None, "")


# Settings


def summarize(spec: SweepSpec, results: Sequence[Result]) -> list[Summary]:
    """Groups results by setting, in the order of the spec."""
    return [Summary(setting, [result for result in results if result.run.setting is setting])
            for setting in spec.settings]


def leading(summaries: Sequence[Summary], metric: Metric) -> Summary | None:
    """Returns the setting with the best mean; None where no run has finished."""
    sign = 1 if metric.higher_is_better else -1
    return max((summary for summary in summaries if summary.mean is not None),
               key=lambda summary: sign * summary.mean, default=None)


def within_noise(leader: Summary, summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the settings that do not differ significantly from the leading one: the interval of the difference over
    pairs of runs of one seed (`paired.difference`) contains zero, or is not known, since there are fewer than two. All
    intervals together have 95 %."""
    others = [summary for summary in summaries if summary is not leader and summary.mean is not None]
    return [summary for summary in others if not paired.differ(leader.by_seed, summary.by_seed, len(others))]


def single_run(leader: Summary, summary: Summary) -> bool:
    """Returns whether two settings have fewer than two seeds in common, so that the noise is not known."""
    return len(leader.by_seed.keys() & summary.by_seed.keys()) < 2


def incomparable(spec: SweepSpec) -> list[str]:
    """Returns the fields that differ between settings and can change validation examples or targets."""
    paths = dict.fromkeys(path for setting in spec.settings for path in setting.changes)
    return [path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in VALIDATION_SETTINGS)]


def table(summaries: Sequence[Summary], metric: Metric) -> str:
    """Formats a line for each setting. Marks the best one, or the leading one and those within its noise."""
    leader = leading(summaries, metric)
    near = within_noise(leader, summaries) if leader else []
    marks = {id(leader): "leads" if near else "best",
             **{id(summary): "one run" if single_run(leader, summary) else "within the noise" for summary in near}}

    def text(value: float | None) -> str:
        return "" if value is None else format(value, metric.format)

    rows = [("setting", "mean", "std", "min", "max", "runs", "failed", "")]
    for summary in summaries:
        values, failed = summary.values, summary.count(FAILED) + summary.at_baseline
        rows.append((summary.setting.name, text(summary.mean), text(summary.deviation), text(min(values, default=None)),
                     text(max(values, default=None)), f"{summary.count(FINISHED)}/{len(summary.results)}",
                     str(failed or ""), marks.get(id(summary), "")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(
        row[1:-1], widths[1:-1], strict=True)), row[-1]]).rstrip() for row in rows)


def write(directory: Path, summaries: Sequence[Summary], name: str, metric: Metric) -> None:
    """Writes results.tsv and results.json. Raises RunFault if that fails."""
    leader = leading(summaries, metric)
    paths = dict.fromkeys(path for summary in summaries for path, _ in summary.setting.fields)
    near = within_noise(leader, summaries) if leader else []
    records: list[dict[str, Any]] = []
    for summary in summaries:
        values = summary.values
        records.append({
            "setting": summary.setting.name, "fields": dict(summary.setting.fields), "mean": summary.mean,
            "std": summary.deviation, "min": min(values, default=None), "max": max(values, default=None),
            "runs": len(summary.results), "finished": summary.count(FINISHED), "faults": summary.count(FAILED),
            "at_baseline": summary.at_baseline, "best": int(summary is leader and not near),
            "seeds": {str(result.run.seed): _record(result) for result in summary.results}})
    text = io.StringIO()
    lines = csv.writer(text, delimiter="\t", lineterminator="\n")
    statistics_, counts = ("mean", "std", "min", "max"), ("runs", "finished", "faults", "at_baseline", "best")
    lines.writerow(["setting", *paths, *(f"{name}_{statistic}" for statistic in statistics_), *counts])
    for row in records:
        lines.writerow([row["setting"], *(row["fields"].get(path, "") for path in paths),
                        *("" if row[name] is None else repr(row[name]) for name in statistics_),
                        *(row[name] for name in counts)])
    write_text(directory / TABLE, text.getvalue())
    write_json(directory / RECORD, {"metric": name, "higher_is_better": metric.higher_is_better,
                                    "best": leader.setting.name if leader and not near else None,
                                    "leading": leader and leader.setting.name,
                                    "within_noise": [summary.setting.name for summary in near], "settings": records})


def _record(result: Result) -> dict[str, Any]:
    """Returns the fields of a run in results.json."""
    value = result.value if result.value is None or math.isfinite(result.value) else str(result.value)
    ending = {"exit_code": result.ending.exit_code, "seconds": result.ending.seconds} if result.ending else {}
    return {"workdir": result.run.name, "state": result.state, "value": value, "at_baseline": result.at_baseline,
            "reason": result.reason, **ending}


def reported(summaries: Sequence[Summary], metric: Metric) -> list[Run]:
    """Chooses at most `MAX_REPORTED` finished runs for a report, the best settings first."""
    sign = -1 if metric.higher_is_better else 1
    ranked = sorted((summary for summary in summaries if summary.mean is not None),
                    key=lambda summary: sign * summary.mean)
    return [result.run for summary in ranked for result in summary.results if result.state == FINISHED][:MAX_REPORTED]
