"""Distillation in fine-tuning: beside its labels, a task learns the distributions that a run of the same task predicts
(Sanh et al., 2019, section 4: DistilBERT on SQuAD, taught by a BERT that was fine-tuned on it).

    loss = alpha_task * loss + alpha_ce * T^2 KL(teacher / T || student / T)

The teacher is `config.frozen.teacher`: a fine-tuned run, with the same tokenizer and the same labels in the same order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.metrics import Metric
from lmrep.objectives import teaching
from lmrep.objectives.base import Batch, FrozenPart, FrozenParts, Metrics
from lmrep.objectives.outputs import sums
from lmrep.objectives.teaching import TEACHER

# The constant distribution is uniform over what is possible: classes, choices, or words of the context.
METRICS: Mapping[str, Metric] = teaching.DIVERGENCE
POSSIBLE = -1e29  # logits of what is impossible are below
SAME = ("labels", "context", "end_of_text", "start_of_text", "pieces")  # fields that student and teacher must agree on


@dataclass(frozen=True)
class Config:
    """The weights of the losses of a teacher and of the labels."""

    alpha_ce: float = setting(0.0, "weight of the divergence from frozen.teacher, a fine-tuned run of this task, times "
                              "T^2; 0: there is no teacher (DistilBERT on SQuAD: 0.5)", at_least=0)
    alpha_task: float = setting(1.0, "weight of the loss of the labels, where there is a teacher (DistilBERT: 0.5)",
                                at_least=0)
    temperature: float = setting(2.0, "T, by which the logits of both are divided", above=0)


def teacher(name: str, c: Any, frozen: FrozenParts) -> FrozenPart | None:
    """Returns the teacher; None if there is none.

    Args:
      name: the task's.
      c: its config, with the field `teacher`; `labels` may be empty before the data are read.
      frozen: the frozen parts.

    Raises:
      UserError: it was trained for another task, or other labels, or reads texts in another way.
    """
    part = frozen.get(TEACHER) if c.teacher.alpha_ce else None
    if part is None:
        return None
    where = f"config.frozen.teacher ({part.source})"
    if part.objective.name != name:
        raise UserError(f"{where} was trained with objective {part.objective.name!r}, and this run is of the task "
                        f"{name}; give a run of this task")
    for field in SAME:
        teachers, students = (getattr(config, field, None) for config in (part.config, c))
        if teachers != students and (students or field != "labels"):
            raise UserError(f"{where} has objective.{field} {_text(teachers)}, and this run {_text(students)}, so that "
                            f"their predictions do not correspond; set --config.objective.{field}={_text(teachers)}, "
                            "or give another teacher")
    return part


def _text(value: Any) -> str:
    return ",".join(value[:20]) if isinstance(value, tuple) else str(value)


def add(
    c: Config, part: FrozenPart | None, params: Tree, batch: Batch, loss: tuple[Array, Metrics], student: Array,
    weights: Array, read: Callable[[dict[str, dict[str, Array]]], Array],
) -> tuple[Array, Metrics]:
    """Adds the divergence from a teacher to the loss and the metrics of a task.

    Args:
      c: the weights of the losses.
      part: the teacher, which predicts without dropout and gets no gradient; None: nothing is added.
      params: the arguments of `Objective.loss`.
      batch: prepared.
      loss: (the loss of the labels, metrics).
      student: float32 [..., k], logits of the student.
      weights: float32 [...], which add to 1.
      read: result of the teacher's `Objective.predict` -> its logits or log probabilities [..., k].
    """
    if part is None:
        return loss
    teacher = read(part.objective.predict(jax.lax.stop_gradient(params["frozen"][TEACHER]), batch))
    equal = jax.lax.stop_gradient(jnp.where(student > POSSIBLE, 0.0, student))
    divergence, constant = (teaching.divergence(jax.lax.stop_gradient(teacher), logits, c.temperature)
                            for logits in (student, equal))
    total, metrics = loss
    return (c.alpha_task * total + c.alpha_ce * (divergence * weights).sum(),
            metrics | sums(weights > 0, distillation_loss=divergence, constant_distillation_loss=constant))
