"""Masked next-token prediction beside causal language modelling, in one network (Charpentier and Samuel, 2024, "GPT or
BERT: why not both?", arXiv:2410.24159).

Some examples of a batch have masks and are read from both sides; the others are read from left to right. In both, the
output at a position predicts the token after it, by one head: a masked token at position k is predicted at k - 1.
With mixing=steps whole batches are of one kind instead. Network and head are those of `causal` with head=transform, so
that the trained model is used as either: it fills in masks, continues texts, and scores them in both ways.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import prompts
from lmrep.metrics import accuracy_metric, loss_metric, optional
from lmrep.models.base import Context, Model, check_context, model_inputs
from lmrep.objectives import causal, masking, scoring
from lmrep.objectives.base import (
    Batch,
    ByTurns,
    Carry,
    EvaluationKeys,
    Keys,
    Metrics,
    Names,
    Objective,
    ObjectiveDef,
)
from lmrep.objectives.capabilities import FillMask, FillMaskOptions, GenerateText
from lmrep.objectives.mlm_head import top_k
from lmrep.objectives.outputs import head_params, normalize_weights, output_layer, smoothed_cross_entropy, sums
from lmrep.objectives.scoring import Scoring, Views
from lmrep.objectives.uses import HeldOut, NetworkUse, NextToken, Uses

NAME = "masked_next_token"
HEAD = causal.Config(head="transform")


@dataclass(frozen=True)
class Config(masking.Config):
    """The settings of the masks, and the share of masked examples."""

    share: float = setting(0.9375, "fraction of a batch's examples that are masked, and weight of their mean loss; the "
                           "other examples are causal, with the rest of the weight", at_least=0, at_most=1)
    mixing: str = setting("examples", "whether each batch has examples of both kinds, or the kind alternates: as large "
                          "a share of the steps is masked, and the others are causal", choices=("examples", "steps"))
    z_loss: float = setting(0.0, "factor of log(Z)^2 in the loss of training, Z being the sum of exp(logits) (PaLM, "
                            "GPT-BERT: 1e-4)", at_least=0)


def check(c: Config) -> None:
    """Raises UserError if fields do not fit each other."""
    masking.check(c)
    masking.check_rates(c)
    if c.masking == "static":
        raise UserError(f"objective.masking is static, and objective={NAME} draws new masks at every step; set it to "
                        "dynamic")


def conditions_on(c: Config) -> Context:
    """Returns what training conditions on: a mask for each example, unless all are of one kind."""
    return {0: Context.LEFT, 1: Context.BOTH}.get(c.share, Context.MASKED)


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective. Raises UserError if the network cannot be conditioned on both sides and on the left context
    as `c.share` needs, or the tokenizer has no mask token."""
    check(c)
    masking.check_mask_token(NAME, vocabulary)
    for context in (conditions_on(c), *([Context.LEFT] if c.share < 1 else [])):
        check_context(model, context, f"objective {NAME!r}")
    most_frequent = int(np.argmax(vocabulary.counts))
    return Objective(
        name=NAME,
        specs={"encoder": model.specs, "objective": {"causal": causal.specs(HEAD, model)}},
        prepare=partial(prepare, c=c, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, most_frequent=most_frequent),
        predict=partial(predict, model=model, size=vocabulary.size),
        terms={name: weight for name, weight in (("mntp_loss", c.share), ("lm_loss", 1 - c.share)) if weight},
        uses=Uses(
            Context.BOTH if c.share else Context.LEFT,
            NextToken(partial(causal.next_token_logits, model=model, c=HEAD),
                      partial(causal.next_token_nll, model=model, c=HEAD)) if c.share < 1 else None,
            scorings=scorings(c, model, vocabulary),
            held_out=partial(held_out, c=c),
            describe=partial(describe, c=c),
            networks=(NetworkUse(model.sizes, "tokens"),)),
    )


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds `targets` i32[b, t], the token after each; `weights` float32 [b, t], 0 where it is not predicted; `inputs`
    i32[b, t] with masks; and `is_masked` bool[b], which examples are read from both sides.

    Of b > 1 examples round(share * b) are masked, at least one and at most b - 1, other ones at each step. On
    validation each example is predicted in both ways: there is no `is_masked`, and `causal_weights` [b, t] are the
    weights without masks. With a share of 0 there are no `inputs`, and with 0 or 1 only the weights of one kind. With
    mixing=steps all examples of a batch are masked, or none (`is_masked_step`).
    """
    batch = causal.prepare(keys, batch, c=HEAD)
    if not c.share:
        return batch
    b, t = batch["tokens"].shape
    mask = partial(masking.mask_example, c=c, vocabulary=vocabulary, rate=masking.rate_at(keys, c))
    inputs, predicted, _, used = jax.vmap(mask)(keys.per_example, batch["tokens"], batch["segment_ids"])
    chosen = jax.vmap(lambda at, used: jnp.zeros(t, bool).at[at].max(used))(predicted, used)
    has_next = batch["weights"] > 0
    before_chosen = jnp.pad(chosen[:, 1:], ((0, 0), (0, 1))) & has_next
    if c.share == 1:
        return batch | {"inputs": inputs, "weights": normalize_weights(before_chosen)}
    if isinstance(keys, EvaluationKeys):
        return batch | {"inputs": inputs, "weights": normalize_weights(before_chosen),
                        "causal_weights": batch["weights"]}
    if c.mixing == "steps":
        is_masked = jnp.broadcast_to(is_masked_step(keys.step, c.share), b)
        rows = is_masked[:, None]
        return batch | {"inputs": jnp.where(rows, inputs, batch["tokens"]), "is_masked": is_masked,
                        "weights": normalize_weights(jnp.where(rows, before_chosen, has_next))}
    number = min(max(round(c.share * b), 1), b - 1) if b > 1 else round(c.share)
    # The row moves with the step: in an order that keeps texts in their rows, none is always of one kind.
    is_masked = (jnp.arange(b) + keys.step) % b < number
    rows = is_masked[:, None]
    weights = (c.share * normalize_weights(before_chosen & rows) + (1 - c.share) * normalize_weights(has_next & ~rows))
    return batch | {"inputs": jnp.where(rows, inputs, batch["tokens"]), "weights": weights, "is_masked": is_masked}


def is_masked_step(step: Array | int, share: float) -> Array:
    """Returns whether the batch of a step i32[] is masked, bool[]: of any n steps in a row, share * n of them, up to
    one. Steps with a share of 1/2 are causal and masked by turns. Shares are rounded to fractions up to n / 10,000."""
    part, whole = Fraction(share).limit_denominator(10_000).as_integer_ratio()
    at = step % whole
    return (at + 1) * part // whole > at * part // whole


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes `share` times the mean cross-entropy of the batch's masked tokens, plus the rest times the mean
    cross-entropy of the next tokens of its causal examples; with mixing=steps, in training, the mean of the batch's one
    kind. The carry stays as it is."""
    total, metrics = jnp.float32(0), {}
    for names, tokens, both_sides, weights, counted, factor in _passes(batch, c):
        hidden = encode(params, batch, tokens, both_sides, model, key)
        part, nll, correct = smoothed_cross_entropy(
            model, params["encoder"], head_params(params, "causal"), hidden, batch["targets"], weights, key,
            z_loss=0.0 if key is None else c.z_loss)
        total += factor * part
        for name, where in zip(names, counted, strict=True):
            measured = sums(where, **{f"{name}_loss": nll, f"{name}_accuracy": correct})
            by_turns = c.mixing == "steps" and "is_masked" in batch
            metrics |= {key: ByTurns(*pair) for key, pair in measured.items()} if by_turns else measured
    every = batch.get("causal_weights", batch["weights"]) > 0
    return total, (metrics | sums(every, most_frequent_accuracy=batch["targets"] == most_frequent), carry)


def _passes(batch: Batch, c: Config) -> list[tuple]:
    """Returns the passes through the network, a tuple each: the names of the kinds of examples, the tokens, whether
    examples are read from both sides, the weights, the positions of each kind, and the factor of the sum."""
    weights, inputs = batch["weights"], batch.get("inputs")
    if "is_masked" in batch:
        rows, used = batch["is_masked"][:, None], weights > 0
        return [(("mntp", "lm"), inputs, batch["is_masked"], weights, (used & rows, used & ~rows), 1.0)]
    causal_weights = batch.get("causal_weights", weights)
    kinds = [(("mntp",), inputs, True, weights, (weights > 0,), c.share),
             (("lm",), batch["tokens"], False, causal_weights, (causal_weights > 0,), 1 - c.share)]
    return [kind for kind in kinds if kind[-1]]


def encode(
    params: Tree, batch: Batch, tokens: Array, both_sides: Array | bool, model: Model, key: Array | None = None,
    at: Array | None = None,
) -> Array:
    """Computes the vectors [b, t, e] that the output table multiplies, at the positions `at` i32[b, m] or all. Examples
    read `tokens` i32[b, t] from both sides or, where `both_sides` (one for all, or bool[b]) is False, from left to
    right."""
    mask, (b, t) = None, tokens.shape
    if not isinstance(both_sides, bool):
        mask = jnp.broadcast_to(both_sides[:, None, None] | jnp.tri(t, dtype=bool), (b, t, t))
    inputs = model_inputs(model, batch, tokens=None if tokens is batch["tokens"] else tokens, mask=mask,
                          conditions_on=Context.LEFT if both_sides is False else Context.BOTH)
    hidden = model.encode(params["encoder"], inputs, key, at=at).hidden
    return causal.before_table(params, hidden, model, HEAD)


def predict(params: Tree, batch: Batch, *, model: Model, size: int, k: int = 5) -> dict[str, Array]:
    """Finds the k most probable tokens at `predicted` i32[b, m], which are not the first positions, given the tokens on
    both sides: `words` i32[b, m, k], `probabilities` [b, m, k]."""
    x = encode(params, batch, batch["tokens"], True, model, at=jnp.maximum(batch["predicted"] - 1, 0))
    logits = output_layer(model).logits(params["encoder"], head_params(params, "causal"), x)
    return top_k(jax.nn.softmax(logits), size, k)


def log_probabilities(params: Tree, batch: Batch, *, model: Model, both_sides: bool) -> Array:
    """Computes the log probability float32 [b, m] of `targets` i32[b, m], each after a `predicted` position."""
    x = encode(params, batch, batch["tokens"], both_sides, model, at=batch["predicted"])
    return output_layer(model).log_probabilities(
        params["encoder"], head_params(params, "causal"), x, batch["targets"])


def scorings(c: Config, model: Model, vocabulary: Vocabulary) -> dict[str, Scoring]:
    """Returns the scores of the kinds of examples that are trained: pseudo-log-likelihoods, of masked ones, before the
    log probability from left to right. Special tokens around a text are not scored, nor a token that is the first."""
    by_mask, from_left = (partial(log_probabilities, model=model, both_sides=both) for both in (True, False))
    found = {}
    if c.share:
        found |= scoring.pseudo_log_likelihoods(vocabulary, by_mask, "causal")
    if c.share < 1:
        found["log_probability"] = Scoring(
            "log probability of the sentence, from left to right", scoring.token_views, from_left, ("causal",))
    return {name: each._replace(views=partial(_shifted, views=each.views)) for name, each in found.items()}


def _shifted(ids: np.ndarray, words: np.ndarray, *, views: Callable[[np.ndarray, np.ndarray], Views]) -> Views:
    """Makes `views` that predict each token at the position before it, without the first token, which has none."""
    made = views(ids, np.where(np.arange(ids.shape[1]) == 0, -1, words))
    return made._replace(predicted=made.predicted - 1)


def held_out(batch: Batch, *, c: Config) -> HeldOut:
    """Returns the masked tokens, as `Uses.held_out`; with a share of 0, the next tokens."""
    if not c.share:
        return causal.held_out(batch)
    t = batch["tokens"].shape[1]
    predicted = batch["weights"] > 0
    if "is_masked" in batch:
        predicted &= batch["is_masked"][:, None]
    m = masking.max_predictions(c, t, max(c.rate, c.final_rate, c.evaluation_rate))
    chosen, positions = jax.lax.top_k(jnp.pad(predicted[:, :-1], ((0, 0), (1, 0))).astype(jnp.int32), m)
    targets = jnp.take_along_axis(batch["tokens"], positions, axis=1)
    return HeldOut(batch["inputs"], positions, jnp.where(chosen > 0, targets, -1))


def describe(batch: Batch, tokenizer: Any, *, c: Config) -> list[str]:
    """Shows each example, a masked one as `masked` does and a causal one as `causal` does."""
    if not c.share:
        return causal.describe(batch, tokenizer)
    masks = held_out(batch, c=c)
    shown = masking.describe(batch | {"predicted": masks.positions, "weights": np.asarray(masks.targets) >= 0},
                             tokenizer)
    if "is_masked" not in batch:
        return shown
    return [("[masked] " + by_mask) if is_masked else "[causal] " + from_left for is_masked, by_mask, from_left in zip(
        batch["is_masked"], shown, causal.describe(batch, tokenizer), strict=True)]


class FillMaskedNext(FillMask):
    """Fills in masked tokens, each from the output at the position before it."""

    def predict(
        self, run: Any, texts: Sequence[str], options: FillMaskOptions, names: Names
    ) -> list[list[list[tuple[str, float]]]]:
        """Predicts as `FillMask`. Raises UserError for a mask that is the first token, which nothing predicts."""
        mask = run.tokenizer.vocabulary.specials["mask"]
        ids = prompts.tokenize_masked(texts, run.tokenizer, run.model.max_length, names, run.special_tokens)
        for text, tokens in zip(texts, ids, strict=True):
            if tokens[0] == mask:
                raise UserError(f"{text[:60]!r} begins with a mask, and {run.directory} predicts a masked token at the "
                                "position before it; put a word before the mask")
        return super().predict(run, texts, options, names)


DEFINITION = ObjectiveDef(
    Config, build, check=check, conditions_on=conditions_on,
    metrics={
        "mntp_loss": loss_metric("Masked next-token loss", baseline="unigram_loss", optional=True),
        "mntp_accuracy": accuracy_metric("Masked next-token accuracy", baseline="most_frequent_accuracy",
                                         optional=True),
    } | optional(causal.DEFINITION.metrics),
    capabilities=(FillMaskedNext("causal", "language-model head"), GenerateText()), loss_fields=("share", "z_loss"),
)
