"""Distillation of a causal language model, as DistilGPT-2's: a student predicts each next token, the distribution of a
frozen teacher, and the teacher's hidden states. See `distillation`; here all tokens are predicted.

Networks with a recurrent state start each example from the initial one.
"""

from dataclasses import dataclass
from functools import partial

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Context, Model
from lmrep.objectives import causal, teaching
from lmrep.objectives.base import Batch, Carry, FrozenPart, FrozenParts, Keys, Objective, ObjectiveDef
from lmrep.objectives.outputs import check_table, head_params, normalize_weights, output_table
from lmrep.objectives.teaching import TEACHER

STUDENT = causal.Config()


@dataclass(frozen=True)
class Config(teaching.Config):
    """The weights of the losses."""

    alpha_clm: float = setting(2.0, "weight of the cross-entropy of the next tokens", at_least=0)


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = {}) -> Objective:  # noqa: B006
    """Builds the objective, which predicts each next token, and the distribution of a teacher."""
    check_table(model)
    def has_logits(part: FrozenPart) -> bool:
        uses = part.objective.uses
        return uses.next_token is not None and uses.conditions_on == Context.LEFT and part.model.output.layer is None

    part = teaching.teacher(c, model, frozen, has_logits,
                            "a causal language model (for a masked one choose objective=distillation)")
    student = causal.build(STUDENT, model, vocabulary)
    taught = part.config if part else None
    form = causal.Config(head=taught.head) if isinstance(taught, causal.Config) else STUDENT
    return student._replace(
        name="causal_distillation",
        frozen={TEACHER: part.specs} if part else {},
        prepare=prepare,
        loss=partial(teaching.loss, c=c, model=model, part=part, counts=vocabulary.counts, name="lm",
                     weight=c.alpha_clm, encode=encode, logits=logits, teacher_logits=partial(logits, form=form)),
        carry=lambda batch_size: Carry(),
        terms=teaching.terms(c, part, lm_loss=c.alpha_clm),
        uses=student.uses._replace(networks=()) if part else student.uses,
    )


def prepare(keys: Keys, batch: Batch) -> Batch:
    """Adds the fields of `causal`, and `teacher_weights` and `token_weights` float32 [b, t] for the teacher."""
    weights = normalize_weights(batch["segment_ids"] > 0)
    return causal.prepare(keys, batch, c=STUDENT) | {"teacher_weights": weights, "token_weights": weights}


def encode(params: Tree, batch: Batch, model: Model, key: Array | None) -> Array:
    """Computes the last hidden states [b, t, d]."""
    return causal.encode(params, batch, model, STUDENT, key).hidden


def logits(
    params: Tree, batch: Batch, hidden: Array, model: Model, key: Array | None, form: causal.Config = STUDENT
) -> teaching.Logits:
    """Returns the logits of the next tokens, by a head with the config `form`."""
    head = head_params(params, "causal")
    return teaching.Logits(causal.before_table(params, hidden, model, form), output_table(model, params, head, key),
                           head.get("bias"))


DEFINITION = ObjectiveDef(
    Config, build, causal.DEFINITION.metrics | teaching.METRICS, conditions_on=lambda c: Context.LEFT,
    capabilities=causal.DEFINITION.capabilities,
    loss_fields=("alpha_ce", "alpha_clm", "alpha_cos", "alpha_mse", "temperature"),
    parts=teaching.parts, teachers=(TEACHER,),
)
