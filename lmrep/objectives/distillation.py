"""Distillation of a masked language model (Sanh et al., 2019): a student predicts masked tokens, the distribution of a
frozen teacher, and the teacher's hidden states.

    L = alpha_ce T^2 KL(teacher / T || student / T) + alpha_mlm MLM + alpha_cos (1 - cos(student, teacher))

Both read the same masked tokens, the teacher without dropout. The divergence is a mean over all tokens, or the masked
ones alone, the cosine over all tokens. A run that is loaded for predictions has no teacher; `lmrep evaluate` reads it.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Model
from lmrep.objectives import frequency_masking, masking, mlm_head, teaching
from lmrep.objectives.base import (
    Batch,
    Carry,
    FrozenPart,
    FrozenParts,
    Keys,
    Metrics,
    NetworkUse,
    Objective,
    ObjectiveDef,
)
from lmrep.objectives.capabilities import FillMask
from lmrep.objectives.outputs import normalize_weights, output_table, sums
from lmrep.objectives.teaching import TEACHER


@dataclass(frozen=True)
class Config(frequency_masking.Config, teaching.Config):
    """The weights of the losses, and the masks."""

    alpha_mlm: float = setting(2.0, "weight of the masked-LM loss", at_least=0)
    restrict_ce_to_mask: bool = setting(False, "whether alpha_ce and alpha_mse act on masked tokens alone")


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = {}) -> Objective:  # noqa: B006
    """Predict masked tokens, and what a teacher predicts."""
    masking.check(c)
    masking.check_mask_token("distillation", vocabulary)
    part = teaching.teacher(c, model, frozen, lambda part: "masked" in part.specs.get("objective", {}),
                            "a masked language model (for a causal one choose objective=causal_distillation,"
                            "format=stream)")
    return Objective(
        name="distillation",
        specs={"encoder": model.specs, "objective": {"masked": mlm_head.specs(model)}},
        frozen={TEACHER: part.specs} if part else {},
        prepare=partial(prepare, c=c, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, part=part, counts=vocabulary.counts),
        predict=partial(mlm_head.predict, model=model, size=vocabulary.size),
        terms=teaching.terms(c, part, mlm_loss=c.alpha_mlm),
        uses=mlm_head.uses(model, vocabulary, networks=() if part else (NetworkUse(model.sizes, "masked"),)),
    )


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds `inputs` i32[b, t]; `predicted`, `targets`, `weights` and `teacher_weights` [b, m], of the masked-LM loss
    and of those of the teacher's logits; and `token_weights` [b, t], of the cosine."""
    tokens, segment_ids = batch["tokens"], batch["segment_ids"]
    inputs, chosen = frequency_masking.mask_batch(keys, tokens, segment_ids, c=c, vocabulary=vocabulary)
    if _everywhere(c):
        predicted = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    else:
        _, predicted = jax.lax.top_k(chosen.astype(jnp.float32), _max_predictions(c, tokens.shape[1]))
    targets, masked = (jnp.take_along_axis(x, predicted, axis=1) for x in (tokens, chosen))
    weights, token_weights = normalize_weights(masked), normalize_weights(segment_ids > 0)
    teacher_weights = weights if c.restrict_ce_to_mask or not _everywhere(c) else token_weights
    return batch | {"inputs": inputs, "predicted": predicted, "targets": targets, "weights": weights,
                    "teacher_weights": teacher_weights, "token_weights": token_weights}


def _everywhere(c: Config) -> bool:
    """Whether logits are needed at all positions: for the teacher, or since a sequence may have any number of masks."""
    return c.draw == "batch" or bool((c.alpha_ce or c.alpha_mse) and not c.restrict_ce_to_mask)


def _max_predictions(c: Config, length: int) -> int:
    return min(length, int(c.rate * length + 1))


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, part: FrozenPart | None,
    counts: np.ndarray,
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The weighted sum of the losses."""
    hidden, student = _logits(params, batch, model, key)
    states = teacher = None
    if part:
        frozen = jax.lax.stop_gradient(params["frozen"][TEACHER])
        states, teacher = _logits(frozen, batch, part.model, None, bool(c.alpha_ce or c.alpha_mse))
    losses = teaching.compare(student, teacher, batch["targets"], c.temperature, counts)
    total, masked = c.alpha_mlm * (losses.nll * batch["weights"]).sum(), batch["weights"] > 0
    metrics = sums(masked, mlm_loss=losses.nll, mlm_accuracy=losses.correct,
                   most_frequent_accuracy=batch["targets"] == np.argmax(counts))
    if part:
        of_logits, found = teaching.of_logits(c, losses, batch["teacher_weights"])
        total, metrics = total + of_logits, metrics | found
    if part and c.alpha_cos:
        distance = teaching.cosine_distance(states, hidden)
        total += c.alpha_cos * (distance * batch["token_weights"]).sum()
        metrics |= sums(batch["token_weights"] > 0, cosine_loss=distance)
    return total, (metrics, carry)


def _logits(
    params: Tree, batch: Batch, model: Model, key: Array | None, head: bool = True
) -> tuple[Array, teaching.Logits | None]:
    """(the last hidden states [b, t, d], the logits at the predicted positions, if they are wanted)."""
    hidden = mlm_head.encode(params, batch, batch["inputs"], model, key)
    if not head:
        return hidden, None
    own, predicted = params["objective"]["masked"], batch["predicted"]
    at = hidden if predicted.shape[1] == hidden.shape[1] else jnp.take_along_axis(hidden, predicted[..., None], axis=1)
    return hidden, teaching.Logits(
        mlm_head.transform(own, at, model), output_table(model, params, own, key), own["bias"])


DEFINITION = ObjectiveDef(
    Config, build, mlm_head.METRICS | teaching.METRICS, masking.check, capabilities=(FillMask(),),
    loss_fields=("alpha_ce", "alpha_mlm", "alpha_cos", "alpha_mse", "temperature", "restrict_ce_to_mask"),
    parts=teaching.parts, teachers=(TEACHER,),
)
