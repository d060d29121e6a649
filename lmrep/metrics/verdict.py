"""The verdict on a run: what it is compared with, what it loses to, and what to change.

`comparison` gives the rows of one table, which `lmrep train` prints and report.html and results.json contain. The last
row is the run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmrep.metrics import (
    COMMON,
    COMPLEMENT,
    UNIGRAM_LOSS,
    Metric,
    baseline_names,
    beats,
    judged,
)

TRIVIAL, BAG_OF_WORDS, START, RUN = "trivial", "bag_of_words", "start", "run"  # kinds of rows

# Changes of a loss, relative to its first value
FALL = 0.05  # a smaller fall is none
EXPLODED = 3.0  # a loss that exceeds that before training by this factor, and ends no lower than it, diverged
RISE = 0.2  # a training loss that rose by more, or as much above its lowest value, diverged
GAP = 0.2  # a training loss that is by this fraction below the validation loss overfits
IMPROVING = 0.02  # a larger fall over the last quarter of training has not ended
FEW_EXAMPLES, FEW_TOKENS = 1000, 1_000_000  # less data than this is little


class Row(NamedTuple):
    """A predictor that a run is compared with, or the run itself."""

    kind: str  # TRIVIAL, BAG_OF_WORDS, START or RUN
    title: str
    metrics: dict[str, float]  # those that are known


def comparison(
    metrics: Mapping[str, Metric], before: Mapping[str, float], after: Mapping[str, float], *, before_step: int = 0,
    step: int, unigram_loss: float | None = None, bag: Row | None = None,
    intervals: Mapping[str, Sequence[float]] = {},
) -> list[Row]:
    """Returns what a run is compared with, and the run as the last row, whose metrics are the columns of the table.

    Args:
      metrics: those that the run declares.
      before, after: validation metrics of steps `before_step` and `step`; `before` is {} where it is not known.
      unigram_loss: of predicting tokens by their frequency, in nats; None where it is not known.
      bag: the row of a bag of words.
      intervals: of `after`; metrics that have one are shown.
    """
    known = judged(metrics, lambda name: unigram_loss or None if name == UNIGRAM_LOSS else after.get(name))
    baselines = {name for metric in metrics.values() for name in baseline_names(metric)}
    shown = [name for name, metric in metrics.items() if name in after and (
        metric.headline or (name not in baselines and (
            name in known or name in intervals or metric.perplexity or metric.unit == "fraction")))]
    shown = shown or ["loss"] * ("loss" in after)
    trivial: dict[str, dict[str, float]] = {}
    for name in shown:
        if name in known:
            trivial.setdefault(known[name].against, {})[name] = known[name].trivial

    def chosen(values: Mapping[str, float]) -> dict[str, float]:
        return {name: values[name] for name in shown if name in values}

    rows = [Row(TRIVIAL, title, values) for title, values in trivial.items()]
    if bag:
        rows.append(bag._replace(metrics=chosen(bag.metrics)))
    if chosen(before):
        rows.append(Row(START, f"this model at step {before_step:,}" if before_step else "this model before training",
                        chosen(before)))
    return [*rows, Row(RUN, f"this model at step {step:,}", chosen(after))] if shown else []


def table(
    metrics: Mapping[str, Metric], rows: Sequence[Row], intervals: Mapping[str, Sequence[float]] = {}
) -> list[list[str]]:
    """Returns the cells of a comparison, the head first, the run and its 95 % intervals last; [] without rows. Losses
    of language models are shown as perplexities."""
    if not rows:
        return []
    names, metrics = [*rows[-1].metrics], COMMON | dict(metrics)
    perplexities = sum(metrics[name].perplexity for name in names)

    def title(metric: Metric) -> str:
        which = f" ({metric.title.removesuffix(' loss').lower()})" if perplexities > 1 else ""
        return f"Perplexity{which}" if metric.perplexity else metric.title

    def cell(metric: Metric, value: float | None) -> str:
        if value is None:
            return ""
        return f"{math.exp(min(value, 700)):,.1f}" if metric.perplexity else format(value, metric.format)

    cells = [[row.title, *(cell(metrics[name], row.metrics.get(name)) for name in names)] for row in rows]
    if any(name in intervals for name in names):
        ends = [intervals.get(name, ()) for name in names]
        cells.append(["  95 % interval", *(" to ".join(format(end, metrics[name].format) for end in pair)
                                           for name, pair in zip(names, ends, strict=True))])
    return [["", *(title(metrics[name]) for name in names)], *cells]


def lost(metrics: Mapping[str, Metric], rows: Sequence[Row]) -> list[tuple[Row, list[str]]]:
    """Returns the rows that the run loses to, each with the names of the metrics by which it does. A run that is equal
    to a trivial predictor loses to it."""
    metrics, losses = COMMON | dict(metrics), []
    for row in rows[:-1]:
        names = []
        for name, value in row.metrics.items():
            metric, now = metrics[name], rows[-1].metrics.get(name, math.nan)
            # A metric whose baseline is another metric's complement is traded for that one during training.
            judges = metric.unit != "fraction" and not (row.kind == START and metric.baseline.startswith(COMPLEMENT))
            if judges and math.isfinite(value) and not beats(metric, now, value) and (
                    row.kind == TRIVIAL or now != value):
                names.append(name)
        if names:
            losses.append((row, names))
    return losses


def sentence(
    metrics: Mapping[str, Metric], rows: Sequence[Row], intervals: Mapping[str, Sequence[float]] = {}
) -> str:
    """Says what a run loses to; "" if to nothing."""
    losses, metrics = lost(metrics, rows), COMMON | dict(metrics)
    if not losses:
        return ""

    def by(row: Row, names: Sequence[str]) -> str:
        within = all(name in intervals and intervals[name][0] <= row.metrics[name] <= intervals[name][1]
                     for name in names)
        return (f"{row.title} (by {' and '.join(metrics[name].title.lower() for name in names)}"
                f"{', within the 95 % interval' if within else ''})")

    failed = any(row.kind == TRIVIAL for row, _ in losses)
    return (f"This run {'failed: it ' if failed else ''}is no better than "
            f"{', nor '.join(by(row, names) for row, names in losses)}.")


def advice(
    train: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]], *, examples: int = 0, tokens: int = 0,
    pretrained: bool = False, labelled: bool = False,
) -> str:
    """Says why a run that loses to a row of its comparison does, and what to change.

    Args:
      train, validation: its lines of metrics.jsonl that measured the same loss; that before training is the first.
      examples: the number of labelled training examples; 0 where it is not known.
      tokens: the number of tokens of training text; 0 where it is not known.
      pretrained: whether it started from a checkpoint.
      labelled: whether it was trained on labelled examples.
    """
    training, held_out = ([float(line["loss"]) for line in lines if "loss" in line] for lines in (train, validation))
    norms = [float(line["gradient_norm"]) for line in train if "gradient_norm" in line]
    few = 0 < examples < FEW_EXAMPLES or 0 < tokens < FEW_TOKENS
    longer = "train for more epochs" if labelled else "train for more steps"
    if problem := _divergence(training, held_out, norms):
        return f"It diverged: {problem}. Lower optimizer.learning_rate, or lengthen its warm-up."
    if max(len(training), len(held_out)) < 2:
        return (f"It logged too few losses to tell the cause: {longer}, and compare learning rates (lmrep sweep "
                "--grid=auto).")
    losses = training if len(training) > 1 else held_out or training
    first, last = losses[0], _mean(losses[-_window(losses):])
    change = f"from {first:.4g} to {last:.4g}"
    best = min(held_out, default=math.inf)
    early = len(held_out) > 2 and held_out[-1] > best + FALL * abs(best)
    if training and early and last < held_out[-1] * (1 - GAP):
        data = f"; {examples:,} examples are few: label more" if few and examples else ""
        return (f"It overfits: the training loss is {last:.4g}, and the validation loss rose from {best:.4g} to "
                f"{held_out[-1]:.4g}. Stop early (evaluation.patience=3), train for fewer "
                f"{'epochs' if labelled else 'steps'}, or use more data or dropout{data}.")
    if last > first - FALL * abs(first):
        return (f"It underfits: the {'training ' * (losses is training)}loss went {change}. Raise "
                f"optimizer.learning_rate, or {longer} (lmrep sweep --grid=auto compares rates); a narrow network from "
                "nothing also needs larger initial weights (about 1 / sqrt(width)).")
    if len(losses) <= 3:  # too few to see whether it still falls
        return f"The loss fell {change}, in too few steps to tell the cause: {longer}."
    quarter = losses[: max(1, 3 * len(losses) // 4)]
    before = _mean(quarter[-_window(losses):])
    if before - last > IMPROVING * abs(before):
        return (f"It underfits: the loss was still falling at the end, from {before:.4g} to {last:.4g} over the last "
                f"quarter. {longer[0].upper()}{longer[1:]}, or raise optimizer.learning_rate.")
    if labelled:
        size = f"{examples:,} examples are few" if few else "more epochs alone will not help"
        start = ("Start from a network that was pretrained for longer on more text" if pretrained else
                 "Start from a pretrained network (init=)")
        return f"The loss fell {change}, and {size}. {start}, label more examples, or use the bag of words."
    size = f"{tokens:,} tokens are little text: train on more" if few else "train for more steps on more text"
    return f"The loss fell {change}, and no longer falls; {size}, or a larger network."


def _divergence(training: Sequence[float], held_out: Sequence[float], norms: Sequence[float]) -> str:
    """Says how the training loss diverged; "" if it did not. A validation loss that rises alone is no divergence."""
    if not all(map(math.isfinite, [*training, *held_out, *norms])):
        return "a loss or a gradient was not finite"
    if len(training) > 1:
        size = _window(training)
        means = [_mean(training[i:i + size]) for i in range(len(training) - size + 1)]
        if means[-1] > min(means) + RISE * abs(training[0]):
            return f"the training loss rose from {min(means):.4g} to {means[-1]:.4g}"
        if max(means) > means[0] + 2 * RISE * abs(training[0]):
            return f"the training loss rose from {training[0]:.4g} to {max(means):.4g} before it fell"
    if len(held_out) > 1:  # the training loss may have risen before the first line of the log
        start, ends = held_out[0], [held_out[-1], *training[-1:]]
        # An auxiliary loss is in the training loss alone, and falls slowly.
        peaks = [*held_out, *(loss for loss in training[:1] if loss > EXPLODED * training[-1])]
        if min(ends) > start * (1 - FALL) and max(peaks) > EXPLODED * start:
            return f"the loss was {start:.4g} before training, and rose to {max(peaks):.4g}"
    return ""


def _window(values: Sequence[float]) -> int:
    return max(1, len(values) // 10)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
