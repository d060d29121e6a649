"""Tables of a run's results on labelled examples, and of its data, as lists of cells."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lmrep.analysis.report import prose
from lmrep.analysis.report.metrics import declared
from lmrep.analysis.report.results import Confusion
from lmrep.analysis.report.run_data import RunData
from lmrep.data.store.prepare import Prepared
from lmrep.experiment.data_sets import files
from lmrep.metrics import COMMON
from lmrep.tasks import TASKS
from lmrep.tasks.known import KNOWN
from lmrep.tasks.known import published as published_figures

MAX_CLASSES = 20  # of a confusion table; of more, the most frequent confusions are listed
MAX_CONFUSIONS = 20
MAX_LABELS = 20  # in the table of labels


def by_run(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns the rows of a table with a column for each run. Rows without any value are left out."""
    return [(name, *(column[name] for column in columns)) for name in columns[0]
            if any(column[name] for column in columns)]


def evaluations(run: RunData) -> dict[str, Any]:
    """Returns a table with a column for each evaluation and a row for each metric, baselines last; {} for none."""
    known = run.results.evaluations or [
        {"split": "validation", "step": run.judged["step"], "metrics": run.judged, "intervals": {}}
        for _ in range(bool(run.judged))]
    if not known:
        return {}
    head = [", ".join([*([evaluation["source"]] if evaluation.get("source") else []),
                       str(evaluation.get("split") or evaluation.get("files")), f"step {evaluation['step']:,}",
                       *([f"{evaluation['examples']:,} examples"] if "examples" in evaluation else [])])
            for evaluation in known]
    names = declared(run)
    ordered = sorted((name for name in names if any(name in evaluation["metrics"] for evaluation in known)),
                     key=lambda name: (name in COMMON, prose.is_baseline(run, name)))

    def cell(evaluation: Mapping[str, Any], name: str) -> str:
        value, interval = evaluation["metrics"].get(name), evaluation["intervals"].get(name)
        if not isinstance(value, int | float):
            return ""
        within = interval and all(map(math.isfinite, interval))
        return format(value, names[name].format) + (f" ({prose.between(interval, names[name])})" if within else "")

    return {"head": ["", *head], "intervals": any(evaluation["intervals"] for evaluation in known),
            "rows": [(names[name].title, *(cell(evaluation, name) for evaluation in known)) for name in ordered]}


def published(run: RunData) -> dict[str, Any]:
    """Returns the published scores on a known data set beside the run's; {} for another data set."""
    name = run.experiment.name
    figures = published_figures(name)
    if name not in KNOWN or KNOWN[name].task != run.stage.objective_name or not figures:
        return {}
    best = KNOWN[name].best or TASKS[KNOWN[name].task].best or run.experiment.checkpoint.best
    value, metric = run.last("validation", best), declared(run).get(best)
    measured = [(f"{run.label} (this run)", f"{100 * value:.1f}")] if value is not None and metric else []
    return {"name": name, "metric": metric.title if metric else best, "rows": [
        *measured, *((system, f"{figure:.1f}") for system, figure in figures.items())]}


def mixes(learned: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the table of learned mixes of frozen layers, its head first: placement, gamma, and the weights."""
    layers = sorted({layer for mix in learned for layer in mix["layers"]})
    rows = [["placement", "gamma", *(f"layer {layer}" for layer in layers)]]
    for mix in learned:
        weights = dict(zip(mix["layers"], mix["weights"], strict=False))
        rows.append([mix["place"], f"{mix['gamma']:.3f}",
                     *(f"{weights[layer]:.3f}" if layer in weights else "" for layer in layers)])
    return rows


def confusions(confusion: Confusion) -> list[tuple[str, ...]]:
    """Returns (gold, predicted, number, fraction of the gold class) of the most frequent confusions."""
    totals: Counter[str] = Counter()
    for (gold, _), number in confusion.counts.items():
        totals[gold] += number
    wrong = sorted((pair for pair in confusion.counts if pair[0] != pair[1]), key=lambda pair: -confusion.counts[pair])
    return [(*pair, f"{confusion.counts[pair]:,}", f"{confusion.counts[pair] / totals[pair[0]]:.1%}")
            for pair in wrong[:MAX_CONFUSIONS]]


def corpus(prepared: Prepared) -> list[tuple[str, ...]]:
    """Returns a row of statistics for each split of a corpus."""
    return [(split, *(f"{s[name]:,}" for name in ("documents", "sentences", "characters", "tokens")),
             f"{s['tokens_per_word']:.2f}", prose.percent(s["unknown_fraction"]))
            for split, s in prepared.statistics.items()]


def frequent_tokens(prepared: Prepared) -> str:
    """Lists the most frequent tokens of the training split, with their fractions."""
    counts = prepared.tokenizer.vocabulary.counts
    total = max(1, int(counts.sum()))
    return ", ".join(f"{prepared.tokenizer.id_to_token(int(i))} {counts[i] / total:.1%}"
                     for i in (-counts).argsort()[:15])


def examples(run: RunData) -> list[tuple[str, ...]]:
    """Returns a row of statistics for each split of labelled examples."""
    return [(split, *(f"{s[name]:,}" for name in ("examples", "tokens", "longest")), f"{s['mean']:.1f}",
             f"{s['sequences']:,}", files(run.experiment, split)) for split, s in run.results.splits.items()]


def labels(splits: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns the head and the rows of a table of the most frequent labels, with a column for each labelled split."""
    totals = {split: total for split, statistics in splits.items() if (total := sum(statistics["labels"].values()))}
    names = list(dict.fromkeys(label for statistics in splits.values() for label in statistics["labels"]))
    return ["label", *totals], [
        (label, *(f"{(number := splits[split]['labels'].get(label, 0)):,} ({number / total:.1%})"
                  for split, total in totals.items())) for label in names[:MAX_LABELS]]


def sources(run: RunData) -> list[tuple[str, ...]]:
    """Returns a row for each source of a mixture: name, fraction of the training examples, number of training examples,
    epochs, number of validation examples, and template."""
    splits, rows = run.results.splits, []
    for source in run.experiment.data_sets():
        train, held_out = (splits.get(split, {}).get("sources", {}).get(source.name, {})
                           for split in ("train", "validation"))
        if train:
            rows.append((source.name, f"{train['fraction']:.2%}", f"{train['examples']:,}", f"{train['epochs']:.2f}",
                         f"{held_out.get('examples', 0):,}", getattr(source.objective, "template", "")))
    return rows
