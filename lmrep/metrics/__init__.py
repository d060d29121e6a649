"""Metrics: their names, units and directions, which logs, `checkpoint.best`, reports and `lmrep evaluate` read.

`lmrep.metrics.tasks` has the metrics of tasks that are computed from all examples at once, `lmrep.metrics.bootstrap`
their intervals.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

UNIGRAM_LOSS, MOST_FREQUENT = "unigram_loss", "most_frequent_accuracy"  # of predicting tokens by their frequency
CORRELATION = "correlation"  # a unit
COMPLEMENT, MAJORITY, ENTROPY = "1 - ", "majority of ", "entropy of "
NO_BASELINE = "none"


class Metric(NamedTuple):
    """A metric of a run: how its values are named, shown, compared and judged.

    `baseline` names the metric whose value a trivial predictor reaches: "name", or "1 - name" for its complement. If
    that metric is the fraction p of one of two classes, "majority of name" is max(p, 1 - p), the accuracy of a constant
    prediction, and "entropy of name" its loss in nats. UNIGRAM_LOSS, which is no metric, is the entropy of the training
    text's token frequencies. NO_BASELINE states that there is none; a comment says why. A correlation needs none: that
    of a constant prediction is 0.
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


def fraction_metric(title: str) -> Metric:
    """Returns a metric for a fraction that is neither good nor bad by itself."""
    return Metric(title, "fraction", False, ".2%")


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
    if metric.unit == CORRELATION:
        return 0.0
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
    """Names the trivial predictor of a metric; `known` has the metrics by name."""
    if is_token_loss(metric) or metric.baseline == MOST_FREQUENT:
        return "token frequencies (unigram)"
    if metric.unit == CORRELATION or metric.baseline.startswith((MAJORITY, ENTROPY)):
        return "a constant prediction"
    name = metric.baseline.removeprefix(COMPLEMENT)
    title = known.get(name, Metric(name)).title
    if metric.baseline.startswith(COMPLEMENT):
        return f"chance ({COMPLEMENT}{title.lower()})"
    return title.partition(" of ")[2] or title.lower()  # "Accuracy of the most frequent class"


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
            judgements[name] = Judgement(metric, now, trivial, baseline_title(metric, metrics))
    return judgements
