"""What the page shows of a run of a task, as the data of templates/task.html.j2."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lmrep.analysis.report import prose
from lmrep.analysis.report.metrics import declared
from lmrep.analysis.report.run_data import RunData
from lmrep.analysis.report.task_results import MAX_CLASSES, Confusion
from lmrep.experiment.task_data import files
from lmrep.metrics import COMMON, Metric
from lmrep.tasks import TASKS
from lmrep.tasks.known import KNOWN, published

MAX_LABELS = 20  # in the table of labels


def results(run: RunData) -> dict[str, Any]:
    """The section on results."""
    task = run.task
    return {"evaluations": _evaluations(run), "published": _published(run), "step": task.step,
            "examples": f"{task.examples:,}", "mixes": _mixes(task.mixes),
            "confusion": _confusion(task.confusion), "confusions": _confusions(task.confusion),
            "worst": [([*example.texts.items()], example.gold, example.predicted) for example in task.worst],
            "fields": TASKS[run.stage.objective_name].reads.fields}


def _evaluations(run: RunData) -> dict[str, list] | None:
    """A column for each evaluation, a row for each metric, with the baselines after the others."""
    known = run.task.evaluations or [
        {"split": "validation", "step": run.judged["step"], "metrics": run.judged, "intervals": {}}
        for _ in range(bool(run.judged))]
    if not known:
        return None
    head = [", ".join([*([each["source"]] if each.get("source") else []),
                       str(each.get("split") or each.get("files")), f"step {each['step']:,}",
                       *([f"{each['examples']:,} examples"] if "examples" in each else [])]) for each in known]
    names = declared(run)
    ordered = sorted((name for name in names if any(name in each["metrics"] for each in known)),
                     key=lambda name: (name in COMMON, prose.is_baseline(run, name)))
    return {"head": ["", *head], "intervals": any(each["intervals"] for each in known),
            "rows": [(names[name].title, *(_cell(each, name, names[name]) for each in known)) for name in ordered]}


def _cell(evaluation: Mapping[str, Any], name: str, metric: Metric) -> str:
    value, interval = evaluation["metrics"].get(name), evaluation["intervals"].get(name)
    if not isinstance(value, int | float):
        return ""
    within = f" ({prose.between(interval, metric)})" if interval and all(map(math.isfinite, interval)) else ""
    return format(value, metric.format) + within


def _published(run: RunData) -> dict[str, Any] | None:
    """The published figures of a known set, beside the run's."""
    name = run.experiment.name
    figures = published(name)
    if name not in KNOWN or KNOWN[name].task != run.stage.objective_name or not figures:
        return None
    best = KNOWN[name].best or TASKS[KNOWN[name].task].best or run.experiment.checkpoint.best
    value, metric = run.last("validation", best), declared(run).get(best)
    own = [(f"{run.label} (this run)", f"{100 * value:.1f}")] if value is not None and metric else []
    return {"name": name, "metric": metric.title if metric else best, "rows": [
        *own, *((system, f"{figure:.1f}") for system, figure in figures.items())]}


def _mixes(mixes: Sequence[Mapping[str, Any]]) -> dict[str, list] | None:
    """A row for each learned mix of frozen layers: where it is, gamma, and the weight of each layer."""
    if not mixes:
        return None
    layers = sorted({layer for mix in mixes for layer in mix["layers"]})
    rows = []
    for mix in mixes:
        weights = dict(zip(mix["layers"], mix["weights"], strict=False))
        rows.append([mix["place"], f"{mix['gamma']:.3f}",
                     *(f"{weights[layer]:.3f}" if layer in weights else "" for layer in layers)])
    return {"head": ["placement", "gamma", *(f"layer {layer}" for layer in layers)], "rows": rows}


def _confusion(confusion: Confusion | None) -> dict[str, Any] | None:
    """A row for each class: (class, [(number, fraction of the row in percent, whether correct)], recall)."""
    if confusion is None or len(confusion.classes) > MAX_CLASSES:
        return None
    rows = []
    for gold in confusion.classes:
        counts = [confusion.counts.get((gold, predicted), 0) for predicted in confusion.classes]
        total, correct = sum(counts), confusion.counts.get((gold, gold), 0)
        cells = [(f"{number:,}", f"{100 * number / max(total, 1):.1f}", predicted == gold)
                 for number, predicted in zip(counts, confusion.classes, strict=True)]
        rows.append((gold, cells, f"{total:,}", f"{correct / total:.1%}" if total else ""))
    return {"classes": confusion.classes, "rows": rows}


def _confusions(confusion: Confusion | None) -> list[tuple[str, ...]]:
    """The most frequent confusions of more classes than a table shows."""
    if confusion is None or len(confusion.classes) <= MAX_CLASSES:
        return []
    return [(gold, predicted, f"{number:,}", f"{number / total:.1%}")
            for gold, predicted, number, total in confusion.errors]


def data(run: RunData) -> dict[str, Any] | None:
    """The section on data."""
    splits = run.task.splits
    if not splits:
        return None
    experiment = run.experiment
    labels = dict.fromkeys(label for each in splits.values() for label in each["labels"])
    totals = {split: sum(each["labels"].values()) for split, each in splits.items()}
    return {
        "splits": [(split, *(f"{each[name]:,}" for name in ("examples", "tokens", "longest")), f"{each['mean']:.1f}",
                    f"{each['sequences']:,}", files(experiment, split)) for split, each in splits.items()],
        "sources": _sources(run), "tfds": experiment.data.tfds,
        "label_head": ["label", *(split for split in splits if totals[split])],
        "labels": [(label, *(f"{(number := each['labels'].get(label, 0)):,} ({number / totals[split]:.1%})"
                             for split, each in splits.items() if totals[split]))
                   for label in [*labels][:MAX_LABELS]],
        "classes": max(each["classes"] for each in splits.values()),
        "form": f"Sequences of at most {run.stage.length:,} tokens, batch size {run.stage.batch_size:,}, "
                f"{run.stage.steps:,} steps"}


def _sources(run: RunData) -> list[tuple[str, ...]]:
    """A row for each source of a mixture: its fraction of the training examples, their number, epochs, validation
    examples and template."""
    splits, rows = run.task.splits, []
    for source in run.experiment.data_sets():
        train, held_out = (splits.get(split, {}).get("sources", {}).get(source.name, {})
                           for split in ("train", "validation"))
        if train:
            rows.append((source.name, f"{train['fraction']:.2%}", f"{train['examples']:,}", f"{train['epochs']:.2f}",
                         f"{held_out.get('examples', 0):,}", getattr(source.objective, "template", "")))
    return rows


def baselines(runs: Sequence[RunData]) -> str:
    """What the dashed lines of the charts are, where all runs are of tasks."""
    titles = dict.fromkeys(each.against for run in runs
                           for each in prose.judged(run).values() if each.metric.baseline)
    return " or ".join(titles)
