"""What is measured: names, units and directions, read by logs, `checkpoint.best`, reports and `lmrep evaluate`.

`lmrep.metrics.tasks` has the metrics of tasks that are computed from all examples at once, `lmrep.metrics.bootstrap`
their intervals.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

UNIGRAM_LOSS = "unigram_loss"
COMPLEMENT = "1 - "


class Metric(NamedTuple):
    """A figure of a run.

    Attributes:
      title: for people.
      unit: "accuracy", "nats" (of a loss), "fraction", or another word for an axis.
      higher_is_better: which of two values is the better one.
      format: how a value is printed.
      headline: whether it is shown while training, beside the loss.
      baseline: the metric whose value the trivial predictor has, if there is one: "1 - name" for its complement,
        and UNIGRAM_LOSS, which is not measured, for the entropy of the training text's token frequencies.
      perplexity: whether it is a mean loss per token of a language model, shown to people as exp(loss).
      maximum: of a metric of which more is better, the value of perfect predictions.
    """

    title: str
    unit: str = ""
    higher_is_better: bool = False
    format: str = ".4g"
    headline: bool = False
    baseline: str = ""
    perplexity: bool = False
    maximum: float = 1.0


def accuracy_metric(title: str, baseline: str = "", headline: bool = True) -> Metric:
    """A fraction of predictions that are right."""
    return Metric(title, "accuracy", True, ".2%", headline, baseline)


def loss_metric(title: str, perplexity: bool = False, baseline: str = "") -> Metric:
    """A mean negative log-likelihood in nats."""
    return Metric(title, "nats", False, ".4g", baseline=baseline, perplexity=perplexity)


def fraction_metric(title: str) -> Metric:
    """A fraction, neither good nor bad by itself."""
    return Metric(title, "fraction", False, ".2%")


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


def baseline(metric: Metric, value: Callable[[str], float | None]) -> float | None:
    """The value that the trivial predictor reaches on the same text; None where it is not known.

    Args:
      metric: the metric.
      value: of a metric of that name, or of UNIGRAM_LOSS; None where it was not measured.
    """
    if is_token_loss(metric):
        return value(UNIGRAM_LOSS)
    if not metric.baseline:
        return None
    found = value(metric.baseline.removeprefix(COMPLEMENT))
    return 1 - found if found is not None and metric.baseline.startswith(COMPLEMENT) else found


def baseline_title(metric: Metric, known: Mapping[str, Metric]) -> str:
    """What that predictor is; `known` are the metrics by name."""
    if is_token_loss(metric):
        return "Predicting by token frequency"
    name = metric.baseline.removeprefix(COMPLEMENT)
    title = known.get(name, Metric(name)).title
    return f"Chance ({COMPLEMENT}{title.lower()})" if metric.baseline.startswith(COMPLEMENT) else title
