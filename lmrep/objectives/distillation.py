"""Distillation of a masked language model (Sanh et al., 2019): a student predicts masked tokens, the distribution of a
frozen teacher, and the teacher's hidden states. Masks prefer rare tokens, as in XLM (Conneau and Lample, 2019).

    L = alpha_ce T^2 KL(teacher / T || student / T) + alpha_mlm MLM + alpha_cos (1 - cos(student, teacher))

Both read the same masked tokens, the teacher without dropout. The divergence is a mean over all tokens, or the masked
ones alone, the cosine over all tokens. A run that is loaded for predictions has no teacher; `lmrep evaluate` reads it.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Model
from lmrep.objectives import masking, mlm_head, teaching
from lmrep.objectives.base import Batch, EvaluationKeys, FrozenParts, Keys, Objective, ObjectiveDef
from lmrep.objectives.capabilities import FillMask
from lmrep.objectives.outputs import normalize_weights, output_table
from lmrep.objectives.teaching import TEACHER
from lmrep.objectives.uses import NetworkUse


@dataclass(frozen=True)
class Config(teaching.Config):
    """The weights of the losses, and the masks."""

    rate: float = setting(0.15, "fraction of the tokens that is predicted", above=0, at_most=1)
    draw: str = setting("sequence", "batch: ceil(rate * n) of the n tokens of a batch, as released; sequence: floor("
                        "rate * n + u) of those of each sequence, u uniform in [0, 1), so that the masks of an example "
                        "do not depend on the others, as always on validation", choices=("sequence", "batch"))
    smoothing: float = setting(0.7, "a token is chosen with a probability proportional to max(count, 1)^-smoothing; 0: "
                               "all tokens with the same one", at_least=0)
    mask: float = setting(0.8, "fraction of the chosen tokens replaced by [MASK]", at_least=0, at_most=1)
    keep: float = setting(0.1, "fraction of the chosen tokens left unchanged", at_least=0, at_most=1)
    random: float = setting(0.1, "fraction of the chosen tokens replaced by a random token, of the full vocabulary",
                            at_least=0, at_most=1)
    alpha_mlm: float = setting(2.0, "weight of the masked-LM loss", at_least=0)
    restrict_ce_to_mask: bool = setting(False, "whether alpha_ce and alpha_mse act on masked tokens alone")


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = {}) -> Objective:  # noqa: B006
    """Builds the objective, which predicts masked tokens, and the distribution of a teacher."""
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
        loss=partial(teaching.loss, c=c, model=model, part=part, counts=vocabulary.counts, name="mlm",
                     weight=c.alpha_mlm, encode=encode, logits=logits, teacher_logits=logits),
        predict=partial(mlm_head.predict, model=model, size=vocabulary.size),
        terms=teaching.terms(c, part, mlm_loss=c.alpha_mlm),
        uses=mlm_head.uses(model, vocabulary, networks=() if part else (NetworkUse(model.sizes, "masked"),)),
    )


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds `inputs` i32[b, t]; `predicted`, `targets`, `weights` and `teacher_weights` [b, m], of the masked-LM loss
    and of the losses on the teacher's logits; and `token_weights` [b, t], of the cosine."""
    tokens, segment_ids, t = batch["tokens"], batch["segment_ids"], batch["tokens"].shape[1]
    inputs, chosen = mask_batch(keys, tokens, segment_ids, c=c, vocabulary=vocabulary)
    if _everywhere(c):
        predicted = jnp.broadcast_to(jnp.arange(t), tokens.shape)
    else:
        _, predicted = jax.lax.top_k(chosen.astype(jnp.float32), min(t, int(c.rate * t + 1)))
    targets, masked = (jnp.take_along_axis(x, predicted, axis=1) for x in (tokens, chosen))
    weights, token_weights = normalize_weights(masked), normalize_weights(segment_ids > 0)
    teacher_weights = weights if c.restrict_ce_to_mask or not _everywhere(c) else token_weights
    return batch | {"inputs": inputs, "predicted": predicted, "targets": targets, "weights": weights,
                    "teacher_weights": teacher_weights, "token_weights": token_weights}


def mask_batch(
    keys: Keys, tokens: Array, segment_ids: Array, *, c: Config, vocabulary: Vocabulary
) -> tuple[Array, Array]:
    """Masks a batch i32[b, t]: a position is drawn, without replacement, with a probability proportional to max(count,
    1)^-smoothing of its token; special tokens are never drawn. Returns (inputs i32[b, t], chosen bool[b, t], the
    positions whose tokens are predicted)."""
    log_weights = -c.smoothing * np.log(np.maximum(vocabulary.counts, 1).astype(np.float64))
    log_weights[[*vocabulary.specials.values()]] = -np.inf
    b, t = tokens.shape
    bits = jax.vmap(lambda key: jax.random.bits(key, (4, t)))(keys.per_example)
    choice, action, fraction = masking.uniform(bits[:, 0]), masking.uniform(bits[:, 1]), masking.uniform(bits[:, 3, 0])
    real = segment_ids > 0
    # The largest of log(w) + Gumbel noise are a sample without replacement, with probabilities proportional to w.
    gumbel = -jnp.log(-jnp.log(choice + 2.0**-25))
    scores = jnp.where(real, jnp.asarray(log_weights, jnp.float32)[tokens] + gumbel, -jnp.inf)
    if c.draw == "batch" and not isinstance(keys, EvaluationKeys):
        rank = _rank(scores.reshape(1, b * t)).reshape(b, t)
        exact = Fraction(c.rate).limit_denominator(1000)  # ceil in whole numbers: float32 would round 0.15 * n
        number = (exact.numerator * real.sum() + exact.denominator - 1) // exact.denominator
    else:
        rank = _rank(scores)
        number = jnp.floor(c.rate * real.sum(-1) + fraction).astype(jnp.int32)[:, None]
    chosen = (rank < number) & (scores > -jnp.inf)
    replacements = (bits[:, 2] % np.uint32(vocabulary.size)).astype(tokens.dtype)
    shown = jnp.where(action < c.mask, vocabulary.specials["mask"],
                      jnp.where(action < c.mask + c.random, replacements, tokens))
    return jnp.where(chosen, shown, tokens), chosen


def _rank(scores: Array) -> Array:
    """Ranks `scores` [n, k] in each row, i32[n, k]: 0 for the largest, 1 for the next."""
    return jnp.argsort(jnp.argsort(-scores, axis=-1), axis=-1).astype(jnp.int32)


def _everywhere(c: Config) -> bool:
    """Tells whether logits are needed at all positions: for the teacher, or because a sequence may have many masks."""
    return c.draw == "batch" or bool((c.alpha_ce or c.alpha_mse) and not c.restrict_ce_to_mask)


def encode(params: Tree, batch: Batch, model: Model, key: Array | None) -> Array:
    """Computes the last hidden states [b, t, d]."""
    return mlm_head.encode(params, batch, batch["inputs"], model, key)


def logits(params: Tree, batch: Batch, hidden: Array, model: Model, key: Array | None) -> teaching.Logits:
    """Returns the logits at the predicted positions."""
    head, predicted = params["objective"]["masked"], batch["predicted"]
    at = hidden if predicted.shape[1] == hidden.shape[1] else jnp.take_along_axis(hidden, predicted[..., None], axis=1)
    return teaching.Logits(mlm_head.transform(head, at, model), output_table(model, params, head, key), head["bias"])


DEFINITION = ObjectiveDef(
    Config, build, mlm_head.METRICS | teaching.METRICS, masking.check, capabilities=(FillMask(),),
    loss_fields=("alpha_ce", "alpha_mlm", "alpha_cos", "alpha_mse", "temperature", "restrict_ce_to_mask"),
    parts=teaching.parts, teachers=(TEACHER,),
)
