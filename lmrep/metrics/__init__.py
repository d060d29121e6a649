"""Metrics: their names, units and directions, which logs, `checkpoint.best`, reports and `lmrep evaluate` read.

`lmrep.metrics.tasks` has the metrics of tasks that are computed from all examples at once, `lmrep.metrics.bootstrap`
their intervals.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

UNIGRAM_LOSS = "unigram_loss"
COMPLEMENT, MAJORITY, ENTROPY = "1 - ", "majority of ", "entropy of "
NO_BASELINE = "none"


class Metric(NamedTuple):
    """A metric of a run: how its values are named, shown, compared and judged.

    `baseline` names the metric whose value a trivial predictor reaches: "name", or "1 - name" for its complement. If
    that metric is the fraction p of one of two classes, "majority of name" is max(p, 1 - p), the accuracy of a constant
    prediction, and "entropy of name" its loss in nats. UNIGRAM_LOSS, which is no metric, is the entropy of the training
    text's token frequencies. NO_BASELINE states that there is none; a comment says why.
    """

    title: str  # for people
    unit: str = ""  # "accuracy", "nats" (for a loss), "fraction", or another label for an axis
    higher_is_better: bool = False
    format: str = ".4g"
    headline: bool = False  # whether it is shown while training, beside the loss
    baseline: str = ""
    perplexity: bool = False  # whether it is a mean loss per token of a language model, shown to people as exp(loss)
    maximum: float = 1.0  # the value of perfect predictions, if higher is better
    optional: bool = False  # whether the config decides if it is measured


def accuracy_metric(title: str, baseline: str = "", headline: bool = True, optional: bool = False) -> Metric:
    """Returns a metric for the fraction of correct predictions."""
    return Metric(title, "accuracy", True, ".2%", headline, baseline, optional=optional)


def loss_metric(title: str, perplexity: bool = False, baseline: str = "", optional: bool = False) -> Metric:
    """Returns a metric for a mean negative log-likelihood in nats."""
    return Metric(title, "nats", False, ".4g", baseline=baseline, perplexity=perplexity, optional=optional)


def fraction_metric(title: str, optional: bool = False) -> Metric:
    """Returns a metric for a fraction that is neither good nor bad by itself."""
    return Metric(title, "fraction", False, ".2%", optional=optional)


def optional(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Returns the metrics, marked as optional."""
    return {name: metric._replace(optional=True) for name, metric in metrics.items()}


# The metrics that the trainer itself measures for every objective.
COMMON: Mapping[str, Metric] = {
    "loss": Metric("Loss", "", False, ".4g", headline=True),
    "gradient_norm": Metric("Gradient norm"),
    "learning_rate": Metric("Learning rate"),
    "tokens": Metric("Tokens", "tokens", format=","),
}


def is_token_loss(metric: Metric) -> bool:
    """Tells whether a metric is a mean loss of tokens, whose exponential is a perplexity."""
    return metric.perplexity or metric.baseline == UNIGRAM_LOSS


def baseline_names(metric: Metric) -> tuple[str, ...]:
    """Returns the name of the metric that a baseline is computed from; () without a baseline."""
    for prefix in (COMPLEMENT, MAJORITY, ENTROPY):
        if metric.baseline.startswith(prefix):
            return (metric.baseline.removeprefix(prefix),)
    return (metric.baseline,) if metric.baseline not in ("", NO_BASELINE) else ()


def baseline(metric: Metric, value: Callable[[str], float | None]) -> float | None:
    """Computes the value that the trivial predictor reaches on the same text; None if it is not known.

    Args:
      metric: the metric.
      value: name of a metric, or UNIGRAM_LOSS -> its value; None if it was not measured.
    """
    if is_token_loss(metric):
        return value(UNIGRAM_LOSS)
    names = baseline_names(metric)
    trivial = value(names[0]) if names else None
    if trivial is None or not math.isfinite(trivial):
        return None
    if metric.baseline.startswith(COMPLEMENT):
        return 1 - trivial
    if metric.baseline.startswith(MAJORITY):
        return max(trivial, 1 - trivial)
    if metric.baseline.startswith(ENTROPY):
        return -sum(p * math.log(p) for p in (trivial, 1 - trivial) if p > 0)
    return trivial


def beats(metric: Metric, value: float, trivial: float) -> bool:
    """Tells whether a value is better than the trivial predictor's."""
    return value > trivial if metric.higher_is_better else value < trivial


def baseline_title(metric: Metric, known: Mapping[str, Metric]) -> str:
    """Describes the trivial predictor of a metric; `known` has the metrics by name."""
    if is_token_loss(metric):
        return "Predicting by token frequency"
    if metric.baseline.startswith((MAJORITY, ENTROPY)):
        return "A constant prediction"
    name = metric.baseline.removeprefix(COMPLEMENT)
    title = known.get(name, Metric(name)).title
    return f"Chance ({COMPLEMENT}{title.lower()})" if metric.baseline.startswith(COMPLEMENT) else title


# Judging whether a run learned

RISE, FALL = 0.02, 0.05  # relative changes of a loss: one that rose by more than RISE, or fell by less than FALL


class Judgement(NamedTuple):
    """A metric of a run, compared with its trivial predictor."""

    metric: Metric
    value: float  # the run's
    trivial: float  # the trivial predictor's
    against: str  # the trivial predictor in words

    @property
    def better(self) -> bool:
        """Tells whether the run is better than the trivial predictor."""
        return beats(self.metric, self.value, self.trivial)

    def __str__(self) -> str:
        form = self.metric.format
        return f"{self.metric.title.lower()} ({self.value:{form}}, against {self.trivial:{form}} for {self.against})"


def judged(metrics: Mapping[str, Metric], value: Callable[[str], float | None]) -> dict[str, Judgement]:
    """Compares the metrics whose trivial predictor is known with it, by name. `value` is as in `baseline`."""
    judgements = {}
    for name, metric in metrics.items():
        now, trivial = value(name), baseline(metric, value)
        if now is not None and trivial is not None:
            judgements[name] = Judgement(metric, now, trivial, baseline_title(metric, metrics).lower())
    return judgements


def advice(first: float | None, last: float | None) -> str:
    """Says what to change in a run that is no better than a trivial predictor, given its first and last loss."""
    if first is None or last is None or not math.isfinite(first):
        return "Train longer, and compare learning rates."
    change = f"from {first:.4g} to {last:.4g}"
    if not last <= first * (1 + RISE):
        return f"The loss rose {change}: lower optimizer.learning_rate, or lengthen its warm-up."
    if last > first * (1 - FALL):
        return (f"The loss hardly fell, {change}: train longer or raise optimizer.learning_rate; a narrow network also "
                "needs larger initial weights (about 1 / sqrt(width)).")
    return f"The loss fell {change}: train longer."
