"""A teacher in fine-tuning: beside its labels, a task learns the distributions that a run of the same task predicts
(Sanh et al., 2019, section 4: DistilBERT on SQuAD, taught by a BERT that was fine-tuned on it).

    loss = alpha_task * loss + alpha_ce * T^2 KL(teacher / T || student / T)

The teacher is `config.frozen.teacher`: a fine-tuned run, with the same tokenizer and the same labels in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.metrics import Metric
from lmrep.objectives import teaching
from lmrep.objectives.base import Batch, FrozenPart, FrozenParts, Metrics
from lmrep.objectives.outputs import sums
from lmrep.objectives.teaching import TEACHER

METRICS: Mapping[str, Metric] = {"distillation_loss": teaching.METRICS["distillation_loss"]}


@dataclass(frozen=True)
class Config:
    """The weights of the labels and of the teacher."""

    alpha_ce: float = setting(0.0, "weight of the divergence from frozen.teacher, a fine-tuned run of this task, times "
                              "T^2; 0: there is no teacher (DistilBERT on SQuAD: 0.5)", at_least=0)
    alpha_task: float = setting(1.0, "weight of the loss of the labels, where there is a teacher (DistilBERT: 0.5)",
                                at_least=0)
    temperature: float = setting(2.0, "T, by which the logits of both are divided", above=0)


def parts(c: Config) -> tuple[str, ...]:
    """The frozen parts that training needs."""
    return (TEACHER,) if c.alpha_ce else ()


def teacher(name: str, c: Any, frozen: FrozenParts) -> FrozenPart | None:
    """The teacher, if there is one.

    Args:
      name: of the task.
      c: its config; `labels` may be empty before the data are read.
      frozen: the frozen parts.

    Raises:
      UserError: it was trained for another task, or other labels.
    """
    part = frozen.get(TEACHER) if c.alpha_ce else None
    if part is None:
        return None
    if part.objective.name != name:
        raise UserError(f"config.frozen.teacher ({part.source}) was trained with objective {part.objective.name!r}, "
                        f"and this run is of the task {name}; give a run of this task")
    theirs, ours = (tuple(getattr(each, "labels", ())) for each in (part.config, c))
    if ours and theirs != ours:
        raise UserError(f"config.frozen.teacher ({part.source}) has the labels {', '.join(theirs[:20])}, in this "
                        f"order, and this run {', '.join(ours[:20])}; give a teacher of the same labels, or "
                        f"--config.objective.labels={','.join(theirs[:20])}")
    return part


def specs(part: FrozenPart | None) -> Tree:
    """`Objective.frozen`."""
    return {TEACHER: part.specs} if part else {}


def predictions(part: FrozenPart, params: Tree, batch: Batch) -> dict[str, dict[str, Array]]:
    """What the teacher predicts for a batch, without dropout and without a gradient."""
    return part.objective.predict(jax.lax.stop_gradient(params["frozen"][TEACHER]), batch)


def add(
    c: Config, total: Array, metrics: Metrics, theirs: Array, ours: Array, weights: Array
) -> tuple[Array, Metrics]:
    """The loss with the teacher, and metrics.

    Args:
      c: the weights.
      total, metrics: of the labels.
      theirs: float32 [..., k], logits or log-probabilities of the teacher.
      ours: float32 [..., k], logits of the student.
      weights: float32 [...], which add to 1.
    """
    divergence = teaching.divergence(jax.lax.stop_gradient(theirs), ours, c.temperature)
    return (c.alpha_task * total + c.alpha_ce * (divergence * weights).sum(),
            metrics | sums(weights > 0, distillation_loss=divergence))
