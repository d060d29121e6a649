"""A head that scores an answer's last token given the first, with a classifier of no answer: XLNet's on SQuAD (Yang et
al., 2019, and their released code), XLNetForQuestionAnswering of Hugging Face Transformers.

    start:  a linear layer on every token
    end:    tanh, layer norm and a linear layer on a token beside the answer's first one
    answer: tanh and a linear layer on the mean of the tokens, weighted by the start's probabilities, beside the token
            of no answer: the logit that there is none

In training, the first token is the right one; in prediction, ends are scored for a few starts. Both are distributions
over the tokens of the context and the token of no answer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.core.params import Array, Initializer, Tree
from lmrep.data.formats.base import Field
from lmrep.layers import linear, norm
from lmrep.objectives.base import Batch
from lmrep.tasks import heads

EXCLUDED = -1e30  # a logit where no answer may begin or end; finite, so that empty units have finite gradients
WEIGHT = 0.5  # weight of the classifier's loss
FIELDS = {name: Field("bn", np.int32, f"position in the text of {what}; -1 for empty sequences") for name, what in (
    ("context_first", "the context's first token"), ("context_end", "the token after the context"))}


def specs(width: int, init: Initializer) -> Tree:
    """Declares the head's parameters, on vectors of that width."""
    def layer(d_in: int, d_out: int, bias: bool = True) -> Tree:
        return linear.specs(d_in, d_out, (None, None), init, bias=bias)

    return {"start": layer(width, 1),
            "end": {"dense": layer(2 * width, width), "norm": norm.specs(width), "out": layer(width, 1)},
            "answer": {"dense": layer(2 * width, width), "out": layer(width, 1, bias=False)}}


def start_logits(head: Tree, x: Array) -> Array:
    """Computes the logits float32 [...] of tokens [..., d] as the answer's first one."""
    return linear.apply(head["start"], x.astype(jnp.float32))[..., 0]


def end_logits(head: Tree, x: Array, starts: Array, unit: Array, eps: float) -> Array:
    """Computes the logits float32 [b, t] of tokens as the answer's last one, given the vector of the first.

    Args:
      head: laid out as `specs`.
      x: [b, t, d], the tokens' vectors.
      starts: [b, n, d], the vector of each unit's first token.
      unit: i32[b, t], the unit of each token.
      eps: layer norm's.
    """
    x, starts = x.astype(jnp.float32), starts.astype(jnp.float32)
    kernel, bias = head["end"]["dense"]["kernel"], head["end"]["dense"]["bias"]
    beside = jnp.take_along_axis(starts @ kernel[x.shape[-1]:], unit[..., None], axis=1)
    y = norm.apply(head["end"]["norm"], jnp.tanh(x @ kernel[: x.shape[-1]] + beside + bias), eps)
    return linear.apply(head["end"]["out"], y)[..., 0]


def no_answer_logits(head: Tree, summary: Array, null: Array) -> Array:
    """Computes the logits float32 [...] that there is no answer, given `summary` [..., d], the mean of the possible
    starts, and `null` [..., d], the vector of the token of no answer."""
    both = jnp.concatenate([summary, null], -1).astype(jnp.float32)
    return linear.apply(head["answer"]["out"], jnp.tanh(linear.apply(head["answer"]["dense"], both)))[..., 0]


def _masks(batch: Batch) -> tuple[Array, Array]:
    """Returns (the tokens of each unit's context, these and the token of no answer), bool[b, n, t] each."""
    in_unit = heads.unit_tokens(batch, batch["unit"].shape[1])
    at = jnp.arange(batch["tokens"].shape[1]) - batch["first"][..., None]
    context = in_unit & (at >= batch["context_first"][..., None]) & (at < batch["context_end"][..., None])
    return context, context | (in_unit & (at == batch["null"][..., None]))


def _units(batch: Batch) -> Array:
    return jnp.maximum(batch["segment_ids"] - 1, 0)


def losses(head: Tree, x: Array, batch: Batch, eps: float, unanswerable: bool) -> tuple[Array, Array]:
    """Computes (the loss, whether start and end are right) of each unit, [b, n]. The loss is the mean of the
    cross-entropies of start and end, plus `WEIGHT` times the classifier's loss if questions may be unanswerable."""
    _, allowed = _masks(batch)
    positions = [jnp.maximum(batch["first"] + jnp.maximum(batch[name], 0), 0) for name in ("start", "end")]
    starts = start_logits(head, x)
    ends = end_logits(head, x, _vectors(x, positions[0]), _units(batch), eps)
    total, correct = 0.0, True
    for y, position in zip((starts, ends), positions, strict=True):
        scores = jnp.where(allowed, y[:, None], EXCLUDED)
        target = jnp.take_along_axis(y, position, axis=1)
        total += (jax.nn.logsumexp(scores, -1) - target) / 2
        correct &= scores.argmax(-1) == position
    if unanswerable:
        y = _no_answer(head, x, starts, allowed, batch)
        total += WEIGHT * optax.sigmoid_binary_cross_entropy(y, (batch["start"] == batch["null"]).astype(jnp.float32))
    return total, correct


def _vectors(x: Array, at: Array) -> Array:
    """Takes the vectors x [b, t, d] at positions i32[b, n]: [b, n, d]."""
    return jnp.take_along_axis(x, at[..., None], axis=1)


def _no_answer(head: Tree, x: Array, starts: Array, allowed: Array, batch: Batch) -> Array:
    """Computes the classifier's logits [b, n]."""
    probabilities = jax.nn.softmax(jnp.where(allowed, starts[:, None], EXCLUDED), -1)
    summary = jnp.einsum("bnt,btd->bnd", probabilities, x.astype(jnp.float32))
    null = batch["first"] + jnp.maximum(batch["null"], 0)
    return no_answer_logits(head, summary, _vectors(x, null).astype(jnp.float32))


def predict(head: Tree, x: Array, batch: Batch, eps: float, beams: int, tokens: int) -> dict[str, Array]:
    """Finds the best starts of each unit in its context, best first, and scores the ends for each.

    Args:
      head: laid out as `specs`.
      x: [b, t, d], the tokens' vectors.
      batch: the task's.
      eps: layer norm's.
      beams: k, the number of starts for which ends are scored.
      tokens: m, the most tokens of an answer.

    Returns:
      `start` i32[b, n, k], positions in the unit; `start_score` float32 [b, n, k], log probabilities, `EXCLUDED`
      outside the context; `end_score` float32 [b, n, k, m], log probabilities of ending at the start, the token after
      it, ...; and `no_answer` float32 [b, n], the classifier's logit.
    """
    context, allowed = _masks(batch)
    t, k = x.shape[1], min(beams, x.shape[1])
    y = start_logits(head, x)
    log_starts = jax.nn.log_softmax(jnp.where(allowed, y[:, None], EXCLUDED), -1)
    scores, at = jax.lax.top_k(jnp.where(context, log_starts, EXCLUDED), k)

    def ends(at: Array) -> Array:  # i32[b, n] -> [b, n, m]
        y = end_logits(head, x, _vectors(x, at), _units(batch), eps)
        log_ends = jax.nn.log_softmax(jnp.where(allowed, y[:, None], EXCLUDED), -1)
        last = at[..., None] + jnp.arange(tokens)
        inside = jnp.where(context, log_ends, EXCLUDED)
        return jnp.where(last < t, jnp.take_along_axis(inside, jnp.minimum(last, t - 1), axis=-1), EXCLUDED)

    end_scores = jnp.moveaxis(jax.lax.map(ends, jnp.moveaxis(at, -1, 0)), 0, 2)
    return {"start": at - batch["first"][..., None], "start_score": scores, "end_score": end_scores,
            "no_answer": _no_answer(head, x, y, allowed, batch)}
