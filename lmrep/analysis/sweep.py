"""The results of a sweep: what each run reached, mean and standard deviation over seeds, and the best setting."""

import csv
import fnmatch
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from lmrep.analysis.report.metrics import VALIDATION_SETTINGS
from lmrep.config import json_files
from lmrep.config.json_files import Number
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import MANIFEST, write_json, write_text
from lmrep.experiment.sweep import Plan, Run, Setting
from lmrep.metrics import Metric, judged
from lmrep.storage.workdir import holder, read_config
from lmrep.training.metrics_log import validations

TABLE, RECORD = "results.tsv", "results.json"
FINISHED, FAILED, RUNNING, UNFINISHED = "finished", "failed", "running", "unfinished"
STOPPED = (130, 143)  # exit codes of a run that was stopped and can continue
REFUSED = 2  # the exit code of a run that was refused before it began
MAX_REPORTED = 20  # runs on a page
CONFIDENCE = 0.95  # of the interval of a difference of means


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
    """What a run reached."""

    run: Run  # of the plan
    state: str  # FINISHED, FAILED, RUNNING (in some process) or UNFINISHED
    value: float | None = None  # of the metric on the validation split; None where it is not known
    # whether it ended at or below the baseline of the trivial predictor; None where none was measured
    at_baseline: bool | None = None
    reason: str = ""  # why it counts as failed, or ""
    ending: Ending | None = None  # of its last training process, if that has ended


class Summary(NamedTuple):
    """The results of a setting, one for each seed."""

    setting: Setting  # of the plan
    results: Sequence[Result]

    @property
    def values(self) -> list[float]:
        """The values of the finished runs."""
        return [each.value for each in self.results if each.state == FINISHED and each.value is not None]

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
    """The file that records how a run ended, an `Ending` as JSON."""
    return directory / f"{run.name}.json"


def log_file(directory: Path, run: Run) -> Path:
    """The file with the output of a run."""
    return directory / f"{run.name}.log"


def result(directory: Path, plan: Plan, run: Run, metric: str = "", best: bool | None = None) -> Result:
    """Reads from a run's files what it has reached.

    Args:
      metric: the validation metric; by default the plan's.
      best: take the run's best validation by that metric instead of its last one; by default, if the plan does.
    """
    workdir, metric = directory / run.name, metric or plan.metric
    ending = _ending(directory, run)
    if not _complete(workdir, ending):
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
    if plan.loads_best if best is None else best:
        sign = 1 if plan.metrics[metric].higher_is_better else -1
        last = max(lines, key=lambda line: -math.inf if math.isnan(line[metric]) else sign * line[metric])
    if not math.isfinite(last[metric]):
        return Result(run, FAILED, last[metric], reason=f"{metric} is {last[metric]}", ending=ending)
    at_baseline, reason = _against_baseline(last, metric, plan.metrics)
    return Result(run, FINISHED, last[metric], at_baseline, reason, ending)


def _complete(workdir: Path, ending: Ending | None) -> bool:
    """Whether a run has trained to its end."""
    try:
        steps = read_config(workdir)["config"].get("steps")
    except (UserError, RunFault):
        return False
    return (ending is not None and ending.exit_code == 0) or (workdir / "checkpoints" / str(steps) / MANIFEST).exists()


def _ending(directory: Path, run: Run) -> Ending | None:
    try:
        return json_files.read(Ending, ending_file(directory, run))
    except UserError:
        return None


def _against_baseline(
    line: Mapping[str, float], metric: str, metrics: Mapping[str, Metric]
) -> tuple[bool | None, str]:
    """(whether a validation is no better than the baseline, the comparison if so). `metric` is judged or, if its
    baseline was not measured, every metric with a measured baseline; None without any."""
    known = judged(metrics, line.get)
    known = {metric: known[metric]} if metric in known else known
    for name, one in known.items():
        if not one.better:
            show = one.metric.format
            return True, f"{name} {one.value:{show}} is no better than {one.trivial:{show}} ({one.against})"
    return (False, "") if known else (None, "")


# Settings


def summaries(plan: Plan, results: Sequence[Result]) -> list[Summary]:
    """The results of each setting, in the order of the plan."""
    return [Summary(setting, [each for each in results if each.run.setting is setting]) for setting in plan.settings]


def leading(found: Sequence[Summary], metric: Metric) -> Summary | None:
    """The setting with the best mean; None where no run has finished."""
    sign = 1 if metric.higher_is_better else -1
    return max((each for each in found if each.mean is not None), key=lambda each: sign * each.mean, default=None)


def within_noise(leader: Summary, found: Sequence[Summary]) -> list[Summary]:
    """The other settings that the leading one may not be better than: the 95 % interval of the difference of the means
    over seeds (Welch's t) has zero in it, or is not known, since one of the two has a single run."""
    others = [one for one in found if one is not leader and one.mean is not None]
    return [one for one in others if not _differ(leader.values, one.values)]


def _differ(a: Sequence[float], b: Sequence[float]) -> bool:
    if min(len(a), len(b)) < 2:
        return False
    if len({*a}) == len({*b}) == 1:  # no noise
        return a[0] != b[0]
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return low > 0 or high < 0


def best(found: Sequence[Summary], metric: Metric) -> Summary | None:
    """The setting whose mean is better than all others by more than the noise; None where there is none."""
    leader = leading(found, metric)
    return leader if leader and not within_noise(leader, found) else None


def incomparable(plan: Plan) -> list[str]:
    """Fields that differ between settings and can change validation examples or targets."""
    paths = dict.fromkeys(path for setting in plan.settings for path in setting.changes)
    return [path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in VALIDATION_SETTINGS)]


def table(found: Sequence[Summary], metric: Metric) -> str:
    """Formats the settings, a line for each. Marks the best one, or the leading one and the others within its noise."""
    leader = leading(found, metric)
    near = within_noise(leader, found) if leader else []
    marks = {id(leader): "leads" if near else "best", **{id(one): "within the noise" for one in near}}

    def text(value: float | None) -> str:
        return "" if value is None else format(value, metric.format)

    rows = [("setting", "mean", "std", "min", "max", "runs", "failed", "")]
    for one in found:
        failed = one.count(FAILED) + one.at_baseline
        rows.append((one.setting.name, text(one.mean), text(one.deviation), text(min(one.values, default=None)),
                     text(max(one.values, default=None)),
                     f"{one.count(FINISHED)}/{len(one.results)}", str(failed or ""), marks.get(id(one), "")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(
        row[1:-1], widths[1:-1], strict=True)), row[-1]]).rstrip() for row in rows)


def write(directory: Path, found: Sequence[Summary], name: str, metric: Metric) -> None:
    """Writes results.tsv and results.json. Raises RunFault if that fails."""
    leader, paths = leading(found, metric), dict.fromkeys(path for one in found for path, _ in one.setting.fields)
    near = within_noise(leader, found) if leader else []
    text = io.StringIO()
    lines = csv.writer(text, delimiter="\t", lineterminator="\n")
    statistics_of = {"mean": lambda one: one.mean, "std": lambda one: one.deviation,
                     "min": lambda one: min(one.values, default=None), "max": lambda one: max(one.values, default=None)}
    counts_of = {"runs": lambda one: len(one.results), "finished": lambda one: one.count(FINISHED),
                 "faults": lambda one: one.count(FAILED), "at_baseline": lambda one: one.at_baseline,
                 "best": lambda one: int(one is leader and not near)}
    lines.writerow(["setting", *paths, *(f"{name}_{each}" for each in statistics_of), *counts_of])
    records: list[dict[str, Any]] = []
    for one in found:
        fields = dict(one.setting.fields)
        figures = {each: of(one) for each, of in statistics_of.items()}
        counts = {each: of(one) for each, of in counts_of.items()}
        lines.writerow([one.setting.name, *(fields.get(path, "") for path in paths),
                        *("" if value is None else repr(value) for value in figures.values()), *counts.values()])
        records.append({"setting": one.setting.name, "fields": fields, **figures, **counts,
                        "seeds": {str(each.run.seed): _record(each) for each in one.results}})
    write_text(directory / TABLE, text.getvalue())
    write_json(directory / RECORD, {"metric": name, "higher_is_better": metric.higher_is_better,
                                    "best": leader.setting.name if leader and not near else None,
                                    "leading": leader and leader.setting.name,
                                    "within_noise": [one.setting.name for one in near], "settings": records})


def _record(each: Result) -> dict[str, Any]:
    value = each.value if each.value is None or math.isfinite(each.value) else str(each.value)
    ending = {"exit_code": each.ending.exit_code, "seconds": each.ending.seconds} if each.ending else {}
    return {"workdir": each.run.name, "state": each.state, "value": value, "at_baseline": each.at_baseline,
            "reason": each.reason, **ending}


def reported(found: Sequence[Summary], metric: Metric) -> list[Run]:
    """Chooses at most `MAX_REPORTED` finished runs for a report, the best settings first."""
    sign = -1 if metric.higher_is_better else 1
    ranked = sorted((one for one in found if one.mean is not None), key=lambda one: sign * one.mean)
    return [each.run for one in ranked for each in one.results if each.state == FINISHED][:MAX_REPORTED]
