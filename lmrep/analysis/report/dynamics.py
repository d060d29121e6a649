"""Learning dynamics: charts over steps of what `lmrep evaluate` and `lmrep probe` have stored of the checkpoints of a
run, of two or more with the same data and settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lmrep.analysis import probes
from lmrep.analysis.probes import ProbeRecord
from lmrep.analysis.report import metrics
from lmrep.analysis.report.run_data import RunData
from lmrep.metrics import COMMON, Metric

# The fields of a line of eval.jsonl that are its results; all others say what was evaluated, and how.
RESULTS = ("step", "metrics", "intervals", "summary", "phenomena", "paradigms", "tasks")
# The results on minimal pairs and on a suite that are drawn: these, and of a suite these of each task.
OF_PAIRS = ("accuracy", "per_token_accuracy")
OF_SUITE = ("accuracy", "spearman", "eye_tracking", "self_paced")


class Line(NamedTuple):
    """A line of a chart."""

    label: str  # "" for the only line of a chart
    color: str  # in CSS
    points: Sequence[tuple[int, float]]  # (step, value), by step


class Chart(NamedTuple):
    """One pair of axes."""

    title: str  # the metric, and what it was measured on
    percent: bool  # whether values are fractions
    lines: Sequence[Line]


def charts(runs: Sequence[RunData]) -> list[Chart]:
    """Returns a chart for each metric of each evaluation, with a line for each run, and one for each probe of a run,
    with a line for each layer."""
    evaluated: dict[tuple[str, bool], list[Line]] = {}
    for i, run in enumerate(runs):
        for title, percent, points in _evaluations(run):
            label = run.label if len(runs) > 1 else ""
            evaluated.setdefault((title, percent), []).append(Line(label, f"var(--r{i % 8})", points))
    return [*(Chart(title, percent, lines) for (title, percent), lines in evaluated.items()), *(
        chart._replace(title=f"{run.label}: {chart.title}" if len(runs) > 1 else chart.title)
        for run in runs for chart in _probes(run))]


def logarithmic(shown: Sequence[Chart]) -> bool:
    """Returns whether every line has two points on a logarithmic axis, which step 0 is not on."""
    return all(sum(step > 0 for step, _ in line.points) > 1 for chart in shown for line in chart.lines)


def _evaluations(run: RunData) -> Iterator[tuple[str, bool, list[tuple[int, float]]]]:
    """Yields (title, whether values are fractions, points) of each metric of each subject, but for counts, baselines,
    and losses that are equal to one of their terms."""
    subjects: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in run.evaluations:
        if isinstance(line.get("metrics"), dict):  # the newest of several of one checkpoint
            subjects.setdefault(_subject(line), {})[line["step"]] = line
    known = metrics.declared(run)
    baselines = {metric.baseline for metric in known.values()}
    for subject, lines in subjects.items():
        kind = lines[min(lines)].keys() & {"pairs", "suite"}
        names = dict.fromkeys(name for line in lines.values() for name in line["metrics"] if not kind or (
            name in OF_PAIRS if "pairs" in kind else name.rpartition("/")[2] in OF_SUITE))
        drawn: list[list[tuple[int, float]]] = []
        for name in sorted(names.keys() - baselines, key=lambda name: (name in COMMON, [*names].index(name))):
            points = [(step, value) for step, line in sorted(lines.items())
                      if isinstance(value := line["metrics"].get(name), float) and math.isfinite(value)]
            if len(points) > 1 and points not in drawn:
                drawn.append(points)
                source, _, last = name.rpartition("/")  # of a mixture
                metric = known.get(name, known.get(last, Metric(last)))
                unit = ", nats" if metric.unit == "nats" else ""
                yield (f"{metric.title}{unit}; {f'{source}, ' if source else ''}{subject}",
                       metric.format.endswith("%") or bool(kind and last.endswith("accuracy")), points)


def _subject(line: Mapping[str, Any]) -> str:
    """Says what a line of eval.jsonl was measured on, and how: "test, 64 examples"."""
    texts = []
    for name, value in line.items():
        if name == "examples" and isinstance(value, int):
            texts.append(f"{value:,} examples")
        elif name not in RESULTS:
            is_clear = name in ("split", "files", "source", "pairs", "suite", "score")
            texts.append(str(value) if is_clear else f"{name} {value}")
    return ", ".join(texts)


def _probes(run: RunData) -> Iterator[Chart]:
    """Yields a chart of each probe, from the embeddings, in the first colour, to the last layer."""
    for records in _by_probe(run.probes).values():
        newest = {record["step"]: record for record in records if "step" in record}
        if len(newest) < 2:
            continue
        last = newest[max(newest)]
        metric, lines = probes.shown(last)[last["best"]], []
        for layer in range(count := len(last["layers"])):
            values = [(step, float(record["layers"][layer]["metrics"][last["best"]]))
                      for step, record in sorted(newest.items()) if layer < len(record["layers"])]
            percent = round(100 * layer / max(1, count - 1))
            lines.append(Line(f"layer {last['layers'][layer].get('layer', layer)}" if layer else "embeddings",
                              f"color-mix(in srgb, var(--r1) {percent}%, var(--r0))",
                              [point for point in values if math.isfinite(point[1])]))
        examples = last["examples"]["validation"]
        yield Chart(f"{metric.title} of {probes.method(last)}; {last['name']}, {examples:,} examples",
                    metric.format.endswith("%"), [line for line in lines if line.points])


def _by_probe(records: Sequence[ProbeRecord]) -> dict[tuple, list[ProbeRecord]]:
    """Groups probes of the same data, pooling and metric."""
    groups: dict[tuple, list[ProbeRecord]] = {}
    for record in records:
        key = (record["name"], record["task"], record["best"], record.get("pooling"),
               *sorted(record["examples"].items()))
        groups.setdefault(key, []).append(record)
    return groups


def tables(records: Sequence[ProbeRecord]) -> list[tuple[ProbeRecord, list[ProbeRecord]]]:
    """Returns (the last step's record, records of earlier steps) for each probe, and (record, []) for each record
    without a step."""
    shown: list[tuple[ProbeRecord, list[ProbeRecord]]] = []
    for group in _by_probe(records).values():
        by_step = sorted((record for record in group if "step" in record), key=lambda record: record["step"])
        shown += [(record, []) for record in group if "step" not in record]
        if by_step:
            shown.append((by_step[-1], by_step[:-1]))
    return shown
