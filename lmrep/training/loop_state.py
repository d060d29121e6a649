"""The state of the training loop, which checkpoints hold beside the training state, and its throughput."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from lmrep.config.json_files import Count
from lmrep.config.record import convert
from lmrep.training.evaluation import MetricSums
from lmrep.training.faults import FaultsConfig, Losses


class Saved(TypedDict):
    """The result of `LoopState.to_json`. Checkpoints of earlier versions lack the fields that are not required."""

    sums: dict[str, tuple[float, float]] | None
    tokens: Count
    validated: int
    losses: NotRequired[list[tuple[int, float]]]
    faults: NotRequired[list[dict[str, Any]]]
    skipped_batches: NotRequired[list[Count]]
    best: NotRequired[float | None]
    best_validation: NotRequired[float | None]
    unimproved: NotRequired[Count]


@dataclass
class LoopState:
    """The state of the loop besides the training state. Checkpoints hold it as JSON."""

    losses: Losses  # the last losses, which determine spikes
    skipped_batches: list[int]  # for each stage, the number of batches that were skipped by going back
    sums: MetricSums  # metrics since the last line of metrics.jsonl
    tokens: int  # tokens of all batches so far, without padding
    validated: int  # the step of the newest validation; -1 before the first
    faults: list[dict[str, Any]]  # faults so far: step, stage, policy
    best: float | None  # the best value of the metric `checkpoint.best` of any checkpoint; None before the first
    best_validation: float | None  # the best value of that metric in any validation of the last stage
    unimproved: int  # the number of validations since then, for early stopping

    def to_json(self) -> dict[str, Any]:
        """Returns the state as JSON for a checkpoint: `Saved`."""
        return {"sums": self.sums.sums, "tokens": self.tokens, "validated": self.validated,
                "losses": [*self.losses.history], "faults": self.faults, "skipped_batches": self.skipped_batches,
                "best": self.best, "best_validation": self.best_validation, "unimproved": self.unimproved}

    def count_validation(self, sign: int, score: float) -> None:
        """Counts a validation of the last stage. `sign`: 1 if a higher score is better, -1 if a lower one is."""
        improved = self.best_validation is None or sign * score > sign * self.best_validation
        self.unimproved = 0 if improved else self.unimproved + 1
        self.best_validation = score if improved else self.best_validation

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], config: FaultsConfig, stages: int) -> "LoopState":
        """Restores the result of `to_json`, also for a run with more `stages` since; {} gives the initial state.
        Raises UserError if a field is missing or of another type."""
        fields = convert(Saved, fields or {"sums": None, "tokens": 0, "validated": -1}, "the checkpoint's meta")
        skipped = list(fields.get("skipped_batches", ()))
        return cls(Losses(config, fields.get("losses", ())), skipped + [0] * (stages - len(skipped)),
                   MetricSums(fields["sums"]), fields["tokens"], fields["validated"], list(fields.get("faults", ())),
                   fields.get("best"), fields.get("best_validation"), fields.get("unimproved", 0))


class Throughput:
    """Measures the rates over the last `window` steps."""

    def __init__(self, window: int = 64):
        self._recent: deque[tuple[float, int]] = deque(maxlen=window)  # (end time, tokens) of each step

    def add(self, tokens: int) -> None:
        """Adds a step that has just ended."""
        self._recent.append((time.monotonic(), tokens))

    def clear(self) -> None:
        """Removes all steps, for example after a validation, whose time must not count."""
        self._recent.clear()

    def rates(self) -> dict[str, float]:
        """Returns `tokens_per_second` and `steps_per_second`, in wall-clock time; {} until two steps have ended."""
        seconds = self._recent[-1][0] - self._recent[0][0] if self._recent else 0.0
        return {} if seconds <= 0 else {
            "tokens_per_second": sum(tokens for _, tokens in list(self._recent)[1:]) / seconds,
            "steps_per_second": (len(self._recent) - 1) / seconds}
