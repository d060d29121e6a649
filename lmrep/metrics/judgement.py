"""Whether a run learned: its metrics against those of trivial predictors, and what to change, by its losses."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lmrep.metrics import Metric, baseline, baseline_title, beats

RISE, FALL = 0.02, 0.05  # relative changes of a loss: above the one it rose, below the other it hardly fell


class Judgement(NamedTuple):
    """A metric whose trivial predictor is known.

    Attributes:
      metric: its definition.
      value, trivial: of the run, and of the trivial predictor.
      against: what that predictor is.
    """

    metric: Metric
    value: float
    trivial: float
    against: str

    @property
    def better(self) -> bool:
        """Whether the run is better than the trivial predictor."""
        return beats(self.metric, self.value, self.trivial)

    def __str__(self) -> str:
        form = self.metric.format
        return f"{self.metric.title.lower()} ({self.value:{form}}, against {self.trivial:{form}} for {self.against})"


def judged(metrics: Mapping[str, Metric], value: Callable[[str], float | None]) -> dict[str, Judgement]:
    """The metrics whose trivial predictor is known. `value` is as in `lmrep.metrics.baseline`."""
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
