"""Distillation of a causal language model, as DistilGPT-2's: a student predicts each next token, the distribution of a
frozen teacher, and the teacher's hidden states. See `distillation`; here all tokens are predicted.

Networks with a recurrent state start each example from the initial one.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Context, Model
from lmrep.objectives import causal, teaching
from lmrep.objectives.base import (
    Batch,
    Carry,
    FrozenPart,
    FrozenParts,
    Keys,
    Metrics,
    Objective,
    ObjectiveDef,
)
from lmrep.objectives.outputs import check_table, normalize_weights, output_table, sums
from lmrep.objectives.teaching import TEACHER

STUDENT = causal.Config()


@dataclass(frozen=True)
class Config(teaching.Config):
    """The weights of the losses."""

    alpha_clm: float = setting(2.0, "weight of the cross-entropy of the next tokens", at_least=0)


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = {}) -> Objective:  # noqa: B006
    """Predict each next token, and what a teacher predicts."""
    check_table(model)
    part = teaching.teacher(c, model, frozen, _has_table_logits,
                            "a causal language model (for a masked one choose objective=distillation)")
    student = causal.build(STUDENT, model, vocabulary)
    return student._replace(
        name="causal_distillation",
        frozen={TEACHER: part.specs} if part else {},
        prepare=prepare,
        loss=partial(loss, c=c, model=model, part=part, counts=vocabulary.counts),
        carry=lambda batch_size: Carry(),
        terms=teaching.terms(c, part, lm_loss=c.alpha_clm),
        uses=student.uses._replace(networks=()) if part else student.uses,
    )


def _has_table_logits(part: FrozenPart) -> bool:
    uses = part.objective.uses
    return uses.next_token is not None and uses.conditions_on == Context.LEFT and part.model.output.layer is None


def prepare(keys: Keys, batch: Batch) -> Batch:
    """As that of `causal`, with `token_weights` float32 [b, t], of the losses that the teacher gives."""
    return causal.prepare(keys, batch, c=STUDENT) | {"token_weights": normalize_weights(batch["segment_ids"] > 0)}


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, part: FrozenPart | None,
    counts: np.ndarray,
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The weighted sum of the losses."""
    hidden, student = _logits(params, batch, model, STUDENT, key)
    states = teacher = None
    if part:
        frozen, form = jax.lax.stop_gradient(params["frozen"][TEACHER]), STUDENT
        if isinstance(part.config, causal.Config):
            form = causal.Config(head=part.config.head)
        states, teacher = _logits(frozen, batch, part.model, form, None)
    teacher = teacher if c.alpha_ce or c.alpha_mse else None
    losses = teaching.compare(student, teacher, batch["targets"], c.temperature, counts)
    total = c.alpha_clm * (losses.nll * batch["weights"]).sum()
    metrics = sums(batch["weights"] > 0, lm_loss=losses.nll, lm_accuracy=losses.correct,
                   most_frequent_accuracy=batch["targets"] == np.argmax(counts))
    if part:
        total, metrics = teaching.add(c, total, metrics, losses, batch["token_weights"], states, hidden,
                                      batch["token_weights"])
    return total, (metrics, carry)


def _logits(
    params: Tree, batch: Batch, model: Model, form: causal.Config, key: Array | None
) -> tuple[Array, teaching.Logits]:
    """(the last hidden states [b, t, d], the logits of the next tokens)."""
    hidden = causal.encode(params, batch, model, STUDENT, key).hidden
    head = params.get("objective", {}).get("causal", {})
    return hidden, teaching.Logits(causal.before_table(params, hidden, model, form),
                                   output_table(model, params, head, key), head.get("bias"))


DEFINITION = ObjectiveDef(
    Config, build, causal.DEFINITION.metrics | teaching.METRICS, conditions_on=lambda c: Context.LEFT,
    capabilities=causal.DEFINITION.capabilities,
    loss_fields=("alpha_ce", "alpha_clm", "alpha_cos", "alpha_mse", "temperature"),
    parts=teaching.parts, teachers=(TEACHER,),
)
