"""Metrics of runs: charts, baselines, and comparison over seeds."""

import fnmatch
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lmrep import metrics as definitions
from lmrep.analysis.report.run_data import RunData, unigram_loss
from lmrep.config.record import flatten_config
from lmrep.experiment.record import ALL_OBJECTIVES, RESUMABLE_FIELDS
from lmrep.metrics import COMMON, UNIGRAM_LOSS, Judgement, Metric, baseline_names, is_token_loss, paired, verdict
from lmrep.metrics.verdict import Row

TIMING = {"tokens_per_second": Metric("Tokens per second", "tokens/s", True)}
NOT_METRICS = frozenset({"step", "split", "time", "tokens"})
# Settings that can change validation examples, their targets or their tokens.
VALIDATION_SETTINGS = ("evaluation.examples", "evaluation.seed", "length", "objective.*", "format.*", "data.*",
                       "sources*", "tokenizer.*")
TASK_SETTINGS = ("evaluation.examples", "data.*", "sources.*.data.*")  # the same for tasks
NOT_TASK_SETTINGS = ("data.train", "data.test", "data.test_columns*", "data.tfds_dir", "sources.*.data.train",
                     "sources.*.data.test*")  # exceptions from `TASK_SETTINGS`


def declared(run: RunData) -> dict[str, Metric]:
    """Returns the metrics that the run's objectives and the trainer declare."""
    stages = [stage.objective_name for stage in run.stages if stage is not run.stage]
    names = dict.fromkeys([*stages, run.stage.objective_name])
    objectives = {name: metric for objective in names
                  for name, metric in run.experiment.metrics(objective).items()}
    return {name: metric for name, metric in (objectives | dict(COMMON) | TIMING).items() if name not in NOT_METRICS}


def headlines(run: RunData) -> dict[str, Metric]:
    """Returns the validation metrics that judge a run: headlines, losses of tokens, and metrics with a baseline."""
    return {name: metric for name, metric in declared(run).items()
            if name not in COMMON and (metric.headline or is_token_loss(metric) or metric.baseline)
            and run.last("validation", name) is not None}


def judged(run: RunData) -> dict[str, Judgement]:
    """Compares validation metrics with their baselines, {name: judgement}."""
    return definitions.judged(declared(run), lambda name: unigram_loss(run) if name == UNIGRAM_LOSS else run.last(
        "validation", name))


def interval(run: RunData, name: str) -> Sequence[float] | None:
    """Returns the 95 % interval of a validation metric; None where it was not computed."""
    return run.results and run.results.interval(run.judged.get("step", 0), name)


def intervals(run: RunData) -> dict[str, Sequence[float]]:
    """Returns the 95 % intervals of the validation metrics that have one."""
    return {name: ends for name in declared(run) if (ends := interval(run, name))}


def compared(run: RunData) -> list[Row]:
    """Returns what a run is compared with, and the run as the last row; [] where nothing was validated."""
    if not run.validation:
        return []
    metrics, first = declared(run), run.comparable[0]
    metrics = {name: metric for name, metric in metrics.items() if name not in COMMON | TIMING}
    after = {name: value for name in (*metrics, "loss") if (value := run.last("validation", name)) is not None}
    return verdict.comparison(
        metrics, first if first["step"] < run.judged["step"] else {}, after, before_step=first["step"],
        step=run.judged["step"], unigram_loss=unigram_loss(run), intervals=intervals(run),
        bag=run.results and run.results.bag)


def advice(run: RunData) -> str:
    """Says why a run loses to a row of its comparison, and what to change."""
    first = run.comparable[0]["step"] if run.validation else 0
    examples = run.results.splits.get("train", {}).get("examples", 0) if run.results else 0
    tokens = run.prepared.stores["train"].tokens if run.prepared else 0
    return verdict.advice(
        [line for line in run.train if line["step"] > first], run.comparable, examples=examples, tokens=tokens,
        pretrained=bool(run.experiment.init or run.experiment.frozen), labelled=run.results is not None)


# Charts


class Chart(NamedTuple):
    """One pair of axes."""

    title: str  # of the metric
    unit: str
    lines: Mapping[int, str]  # {index of a run: name of its metric}
    percent: bool  # whether values are fractions
    baselines: Mapping[int, str]  # {index of a run: name of its baseline}, drawn dashed


def charts(runs: Sequence[RunData]) -> dict[str, Chart]:
    """Returns the charts of all recorded metrics, by name. Runs share the chart of a metric; they share that of the
    total loss where it is the sum of the same terms."""
    members: dict[tuple, dict[int, str]] = {}
    metrics: dict[tuple, Metric] = {}
    for i, run in enumerate(runs):
        known, recorded = declared(run), {
            name for lines in (run.train, run.validation, run.timing) for line in lines for name, value in line.items()
            if isinstance(value, int | float)} - NOT_METRICS - {
                "steps_per_second", "device_peak_bytes", "host_peak_bytes"}
        hidden = {metric.baseline for metric in known.values()}
        if sum(metric.unit == "nats" for name, metric in known.items() if name in recorded) == 1:
            hidden.add("loss")  # which its only term shows
        for name in (*(name for name in known if name in recorded), *sorted(recorded - known.keys())):
            if name in hidden:
                continue
            metric = known.get(name, Metric(name))
            terms = (run.stage.objective_name, frozenset(recorded & known.keys())) if name == "loss" else ()
            key = (metric.title, metric.unit, terms)
            members.setdefault(key, {})[i] = name
            metrics.setdefault(key, metric)
    total = sum(key[0] == COMMON["loss"].title for key in members)
    named: dict[str, Chart] = {}
    for key, lines in members.items():
        metric, name = metrics[key], next(iter(lines.values()))
        title = metric.title
        if name == "loss" and total > 1:
            title += f" ({', '.join(runs[i].label for i in lines)})"
        bases = {i: _baseline_curve(runs[i], name) for i, name in lines.items()}
        while name in named:
            name += "_"
        named[name] = Chart(title, metric.unit, lines, metric.format.endswith("%"),
                            {i: base for i, base in bases.items() if base})
    running = {metric.title for metric in (COMMON | TIMING).values()}  # shown last
    return dict(sorted(named.items(), key=lambda item: item[1].title in running))


def _baseline_curve(run: RunData, name: str) -> str:
    """Returns the name of the recorded baseline of a metric; "" for none."""
    metric = declared(run).get(name, Metric(name))
    if is_token_loss(metric):
        return UNIGRAM_LOSS
    return metric.baseline if metric.baseline in baseline_names(metric) else ""


# Several runs


Groups = Sequence[Sequence[RunData]]  # of runs that differ only in their seed


class Cell(NamedTuple):
    """The values of one metric over a group's runs."""

    text: str  # mean, with the standard deviation where there are several runs
    best: bool = False  # whether no other group's mean is better
    note: str = ""  # whether the difference from the best group is small


def group_by_seed(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Groups runs whose configs differ in the seed, the name and settings that do not change results."""
    ignored = ("seed", "name", *(pattern for pattern in RESUMABLE_FIELDS if pattern != "steps"))
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        settings = {name: value for name, value in flatten_config(run.experiment).items()
                    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)}
        groups.setdefault(repr((run.step, run.source, sorted(settings.items()))), []).append(run)
    # Runs of equal seeds are repetitions, not a sample of seeds.
    return [group for runs in groups.values() for group in (
        [runs] if len({run.experiment.seed for run in runs}) == len(runs) else [[run] for run in runs])]


def comparison(groups: Groups) -> dict[str, list[Cell]]:
    """Compares groups by their headline metrics: {title of a metric: a cell for each group}, with mean and standard
    deviation over seeds, and whether a difference from the best group is found over pairs of runs of one seed."""
    return {metric.title: _cells(groups, name, metric) for name, metric in _compared(groups)}


def _compared(groups: Groups) -> list[tuple[str, Metric]]:
    """Returns (name, metric) of the headlines of all groups, one for each title."""
    by_title: dict[str, tuple[str, Metric]] = {}
    for group in groups:
        for name, metric in headlines(group[0]).items():
            by_title.setdefault(metric.title, (name, metric))
    return [*by_title.values()]


def _value(run: RunData, name: str, metric: Metric) -> float | None:
    """Returns the validation value of a metric; None for a run without it, or with another metric of that name."""
    known = declared(run).get(name)
    same = known is not None and known._replace(headline=metric.headline, baseline=metric.baseline) == metric
    return run.last("validation", name) if same else None


def _cells(groups: Groups, name: str, metric: Metric) -> list[Cell]:
    """Returns the cells of a metric, one for each group."""
    values = [{run.experiment.seed: value for run in group if (value := _value(run, name, metric)) is not None}
              for group in groups]
    means = [statistics.fmean(v.values()) if v else None for v in values]
    known = [mean for mean in means if mean is not None]
    best = (max if metric.higher_is_better else min)(known)
    leader, cells, several = values[means.index(best)], [], any(len(v) > 1 for v in values)
    for mean, v in zip(means, values, strict=True):
        if mean is None:
            cells.append(Cell(""))
            continue
        text = f"{mean:{metric.format}}"
        if len(v) > 1:  # with as many decimals as the mean
            decimals, kind = len(text.rstrip("%").partition(".")[2]), "%" if text.endswith("%") else "f"
            deviation = statistics.stdev(v.values())
            text += f" ± {deviation:{metric.format if 'e' in text else f'.{decimals}{kind}'}} (n = {len(v)})"
        notes = {True: "", False: "no difference found", None: "too few pairs of seeds" if several else ""}
        note = "" if mean == best else notes[paired.differ(v, leader, len(known) - 1)]
        cells.append(Cell(text, len(known) > 1 and mean == best, note))
    return cells


def differing_settings(groups: Groups) -> dict[str, list[str]]:
    """Returns {titles of metrics: settings that make them incomparable}: settings that differ between groups with these
    metrics, and that can change validation examples, their targets or their tokens."""
    settings = [[flatten_config(run.experiment) for run in group] for group in groups]
    objectives = {group[0].stage.objective_name for group in groups}
    ignored = set.intersection(*({f"objective.{field}" for field in ALL_OBJECTIVES[name].loss_fields}
                                 for name in objectives))
    titles_of: dict[tuple[str, ...], list[str]] = {}
    for name, metric in _compared(groups):
        members = [configs for group, configs in zip(groups, settings, strict=True)
                   if _value(group[0], name, metric) is not None]
        shared = [path for path in members[0][0] if path not in ignored and all(path in group[0] for group in members)]
        runs = [run for group in groups for run in group if _value(run, name, metric) is not None]
        fields = tuple(path for path in shared if _changes_validation(path, runs)
                       and len({repr(sorted({repr(run[path]) for run in group})) for group in members}) > 1)
        if fields:
            titles_of.setdefault(fields, []).append(metric.title)
    return {", ".join(titles): list(fields) for fields, titles in titles_of.items()}


def _changes_validation(name: str, runs: Sequence[RunData]) -> bool:
    """Returns whether a setting can change validation examples or targets. Tasks that were validated on the same
    records are comparable, however these are tokenized."""
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    if any(run.results is None for run in runs):
        return matches(VALIDATION_SETTINGS)
    records = {run.results.splits.get("validation", {}).get("records") for run in runs}
    return (len(records) > 1 or None in records) and matches(TASK_SETTINGS) and not matches(NOT_TASK_SETTINGS)
