"""What is measured: names, units and directions, read by logs, `checkpoint.best`, reports and `lmrep evaluate`.

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
    """A figure of a run.

    `baseline` is the metric whose value the trivial predictor has, if there is one: "1 - name" for its complement, and
    UNIGRAM_LOSS, which is not measured, for the entropy of the training text's token frequencies. Of a metric that is
    the fraction p of one of two classes, "majority of name", max(p, 1 - p), and "entropy of name", in nats, are the
    accuracy and the loss of a constant prediction. NO_BASELINE says that there is none, and a comment why.
    """

    title: str  # for people
    unit: str = ""  # "accuracy", "nats" (of a loss), "fraction", or another word for an axis
    higher_is_better: bool = False
    format: str = ".4g"
    headline: bool = False  # whether it is shown while training, beside the loss
    baseline: str = ""
    perplexity: bool = False  # whether it is a mean loss per token of a language model, shown to people as exp(loss)
    maximum: float = 1.0  # of a metric of which more is better, the value of perfect predictions
    optional: bool = False  # whether the config decides if it is measured


def accuracy_metric(title: str, baseline: str = "", headline: bool = True, optional: bool = False) -> Metric:
    """A fraction of predictions that are right."""
    return Metric(title, "accuracy", True, ".2%", headline, baseline, optional=optional)


def loss_metric(title: str, perplexity: bool = False, baseline: str = "", optional: bool = False) -> Metric:
    """A mean negative log-likelihood in nats."""
    return Metric(title, "nats", False, ".4g", baseline=baseline, perplexity=perplexity, optional=optional)


def fraction_metric(title: str, optional: bool = False) -> Metric:
    """A fraction, neither good nor bad by itself."""
    return Metric(title, "fraction", False, ".2%", optional=optional)


def optional(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics as ones that the config decides on."""
    return {name: metric._replace(optional=True) for name, metric in metrics.items()}


# What the trainer itself measures of every objective.
COMMON: Mapping[str, Metric] = {
    "loss": Metric("Loss", "", False, ".4g", headline=True),
    "gradient_norm": Metric("Gradient norm"),
    "learning_rate": Metric("Learning rate"),
    "tokens": Metric("Tokens", "tokens", format=","),
}


def is_token_loss(metric: Metric) -> bool:
    """Whether it is a mean loss of tokens, whose exponential is a perplexity."""
    return metric.perplexity or metric.baseline == UNIGRAM_LOSS


def baseline_names(metric: Metric) -> tuple[str, ...]:
    """The metric that a baseline is computed from; () without a baseline."""
    for prefix in (COMPLEMENT, MAJORITY, ENTROPY):
        if metric.baseline.startswith(prefix):
            return (metric.baseline.removeprefix(prefix),)
    return (metric.baseline,) if metric.baseline not in ("", NO_BASELINE) else ()


def baseline(metric: Metric, value: Callable[[str], float | None]) -> float | None:
    """The value that the trivial predictor reaches on the same text; None where it is not known.

    Args:
      metric: the metric.
      value: of a metric of that name, or of UNIGRAM_LOSS; None where it was not measured.
    """
    if is_token_loss(metric):
        return value(UNIGRAM_LOSS)
    names = baseline_names(metric)
    found = value(names[0]) if names else None
    if found is None or not math.isfinite(found):
        return None
    if metric.baseline.startswith(COMPLEMENT):
        return 1 - found
    if metric.baseline.startswith(MAJORITY):
        return max(found, 1 - found)
    if metric.baseline.startswith(ENTROPY):
        return -sum(p * math.log(p) for p in (found, 1 - found) if p > 0)
    return found


def beats(metric: Metric, value: float, trivial: float) -> bool:
    """Whether a value is better than the trivial predictor's."""
    return value > trivial if metric.higher_is_better else value < trivial


def baseline_title(metric: Metric, known: Mapping[str, Metric]) -> str:
    """What that predictor is; `known` are the metrics by name."""
    if is_token_loss(metric):
        return "Predicting by token frequency"
    if metric.baseline.startswith((MAJORITY, ENTROPY)):
        return "A constant prediction"
    name = metric.baseline.removeprefix(COMPLEMENT)
    title = known.get(name, Metric(name)).title
    return f"Chance ({COMPLEMENT}{title.lower()})" if metric.baseline.startswith(COMPLEMENT) else title


# Whether a run learned

RISE, FALL = 0.02, 0.05  # relative changes of a loss: above the one it rose, below the other it hardly fell


class Judgement(NamedTuple):
    """A metric whose trivial predictor is known."""

    metric: Metric
    value: float  # of the run
    trivial: float  # of the trivial predictor
    against: str  # what that predictor is

    @property
    def better(self) -> bool:
        """Whether the run is better than the trivial predictor."""
        return beats(self.metric, self.value, self.trivial)

    def __str__(self) -> str:
        form = self.metric.format
        return f"{self.metric.title.lower()} ({self.value:{form}}, against {self.trivial:{form}} for {self.against})"


def judged(metrics: Mapping[str, Metric], value: Callable[[str], float | None]) -> dict[str, Judgement]:
    """The metrics whose trivial predictor is known. `value` is as in `baseline`."""
    found = {}
    for name, metric in metrics.items():
        now, trivial = value(name), baseline(metric, value)
        if now is not None and trivial is not None:
            found[name] = Judgement(metric, now, trivial, baseline_title(metric, metrics).lower())
    return found


def advice(first: float | None, last: float | None) -> str:
    """What to change in a run that is no better than a trivial predictor, by its first and last loss."""
    if first is None or last is None or not math.isfinite(first):
        return "Train longer, and compare learning rates."
    change = f"from {first:.4g} to {last:.4g}"
    if not last <= first * (1 + RISE):
        return f"The loss rose {change}: lower optimizer.learning_rate, or lengthen its warm-up."
    if last > first * (1 - FALL):
        return (f"The loss hardly fell, {change}: train longer or raise optimizer.learning_rate; a narrow network also "
                "needs larger initial weights (about 1 / sqrt(width)).")
    return f"The loss fell {change}: train longer."
