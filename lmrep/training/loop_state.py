"""The state of the training loop beside the training state, and its throughput."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

from lmrep.config.json_files import Count
from lmrep.config.record import convert
from lmrep.training.evaluation import MetricSums
from lmrep.training.faults import FaultsConfig, Losses


class Saved(TypedDict):
    """`LoopState.to_json`. Checkpoints of earlier versions lack what is not required."""

    sums: dict[str, tuple[float, float]] | None
    tokens: Count
    validated: int
    losses: NotRequired[list[tuple[int, float]]]
    faults: NotRequired[list[dict[str, Any]]]
    skipped_batches: NotRequired[list[Count]]
    best: NotRequired[float | None]


@dataclass
class LoopState:
    """What the loop knows besides the training state. Checkpoints hold it as JSON."""

    losses: Losses  # the last losses, which decide what is a spike
    skipped_batches: list[int]  # for each stage, how many batches were skipped by going back
    sums: MetricSums  # metrics since the last line of metrics.jsonl
    tokens: int  # how many the run has been trained on, without padding
    validated: int  # the step of the newest validation; -1 before the first
    faults: list[dict[str, Any]]  # those that were skipped or gone back for: step, stage, policy
    best: float | None  # the best value of `checkpoint.best` that a checkpoint has; None before the first

    def to_json(self) -> dict[str, Any]:
        """The fields, for a checkpoint."""
        return {"sums": self.sums.sums, "tokens": self.tokens, "validated": self.validated,
                "losses": [*self.losses.history], "faults": self.faults, "skipped_batches": self.skipped_batches,
                "best": self.best}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], config: FaultsConfig, stages: int) -> "LoopState":
        """The inverse of `to_json`, for a run that may have more `stages` by now; {} gives the state of its start.
        Raises UserError if a field is missing, or of another type."""
        fields = convert(Saved, fields or {"sums": None, "tokens": 0, "validated": -1}, "the checkpoint's meta")
        skipped = list(fields.get("skipped_batches", ()))
        return cls(Losses(config, fields.get("losses", ())), skipped + [0] * (stages - len(skipped)),
                   MetricSums(fields["sums"]), fields["tokens"], fields["validated"], list(fields.get("faults", ())),
                   fields.get("best"))


class Rates(NamedTuple):
    """How fast training goes."""

    tokens_per_second: float
    steps_per_second: float


class Throughput:
    """The rates of the last `window` steps."""

    def __init__(self, window: int = 64):
        self._recent: deque[tuple[float, int]] = deque(maxlen=window)  # (time, tokens) of steps

    def add(self, tokens: int) -> None:
        """Adds a step that has just ended."""
        self._recent.append((time.monotonic(), tokens))

    def clear(self) -> None:
        """Forgets all steps, because something else took time since."""
        self._recent.clear()

    def rates(self) -> Rates | None:
        """None until two steps have ended."""
        seconds = self._recent[-1][0] - self._recent[0][0] if self._recent else 0.0
        if seconds <= 0:
            return None
        return Rates(sum(tokens for _, tokens in list(self._recent)[1:]) / seconds, (len(self._recent) - 1) / seconds)
