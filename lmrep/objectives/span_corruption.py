"""T5's denoising (Raffel et al., 2019, section 3.1.4 and tables 3 to 7): the source is a text with spans replaced by
sentinels, and the target has each sentinel and the tokens that it replaces.

A row of a format is one text, whatever documents it has, as in the released code: with `length=568` and
`format=stream`, sources have 512 tokens and targets 114. All is drawn on the device, from the example's key, and shapes
are static: source and target have the greatest length that a row can need.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers.attention import AttentionMask
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models import decoding
from lmrep.models.base import Context, Inputs, Model, check_context, model_inputs
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import FillSpans
from lmrep.objectives.masking import uniform
from lmrep.objectives.outputs import (
    head_params,
    normalize_weights,
    output_layer,
    output_specs,
    smoothed_cross_entropy,
    sums,
)
from lmrep.objectives.uses import NetworkUse, NextToken, TextPairs, Uses

VARIANTS = ("replace_spans", "drop_tokens", "mask", "bert", "deshuffling", "prefix")
WHOLE = ("mask", "bert", "deshuffling")  # variants whose target is the text
RANDOM_FRACTION = 0.1  # fraction of the noise that the variant bert replaces by random tokens
FIRST_RANDOM = 3  # the smallest random id, after pad, eos and unk; sentinels may be drawn, as in the released code


@dataclass(frozen=True)
class Config:
    """The settings of sources and targets, and of the loss."""

    variant: str = setting("replace_spans", "source and target: spans of noise as sentinels, and these with their "
                           "tokens (T5); without the noise, and the noise; noise as the first sentinel, and the text "
                           "(mask: MASS-style; bert: 10 % of it as random tokens); in random order, and the text; "
                           "the begin of the text, and the rest (prefix)", choices=VARIANTS)
    noise: str = setting("spans", "which tokens are noise: random spans (the last models), or independent tokens (the "
                         "baseline of the paper)", choices=("spans", "tokens"))
    rate: float = setting(0.15, "fraction of the tokens that is noise", above=0, below=1)
    mean_span: float = setting(3.0, "mean length of the spans", at_least=1)
    closing_sentinel: bool = setting(False, "whether a target that ends in noise has one more sentinel at its end, as "
                                     "in the paper's example; not in the released code")
    z_loss: float = setting(1e-4, "factor of log(Z)^2 in the loss of training, Z being the sum of exp(logits)",
                            at_least=0)


class Ids(NamedTuple):
    """The special tokens."""

    sentinels: np.ndarray  # i32[n], in the order in which spans get them
    start: int  # the token that the decoder reads first
    end: int
    size: int  # the number of ids of the vocabulary


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which generates the tokens that were removed from a text, or the text itself."""
    check_context(model, Context.SOURCE, "objective 'span_corruption'")
    ids, head = special_ids(vocabulary, "objective=span_corruption"), output_specs(model)
    return Objective(
        name="span_corruption",
        specs={"encoder": model.specs, **({"objective": {"span_corruption": head}} if head else {})},
        prepare=partial(prepare, c=c, ids=ids),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        predict=partial(predict, model=model, ids=ids),
        terms={"denoising_loss": 1.0},
        uses=Uses(
            Context.SOURCE,
            NextToken(partial(next_token_logits, model=model)),
            describe=describe,
            networks=(NetworkUse(model.sizes),),
            text_pairs=TextPairs(ids.start, ids.end, pair,
                                 lambda length, packed: lengths(length, c, len(ids.sentinels))[::-1]),
            published_heads={"span_corruption": "span_corruption"}),
    )


def special_ids(vocabulary: Vocabulary, name: str) -> Ids:
    """Returns the special tokens of a tokenizer. Raises UserError, which begins with `name`, if it lacks one."""
    special = vocabulary.specials
    if "eos" not in special or not len(vocabulary.sentinels):
        raise UserError(f"{name} needs sentinels, <extra_id_0> and so on, and an end of text, which this tokenizer "
                        "lacks; set --config.tokenizer.name=sentencepiece_t5, or load T5's spiece.model")
    return Ids(np.asarray(vocabulary.sentinels, np.int32), special.get("pad", special["eos"]), special["eos"],
               vocabulary.size)


# Lengths


def noise_counts(n: np.ndarray, c: Config, sentinels: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes (noise tokens, spans of noise) of texts of n tokens, int[...] each: 85 and 28 of 568.

    There are at least one noise token, one other token and one span, as if texts had two tokens or more, and at most as
    many spans as sentinels, one of which may be needed at the end.
    """
    n = np.maximum(n, 2)
    noise = np.clip(np.round(n.astype(np.float32) * np.float32(c.rate)).astype(int), 1, n - 1)
    spans = np.round(noise.astype(np.float32) / np.float32(c.mean_span)).astype(int)
    return noise, np.clip(spans, 1, np.minimum(n - noise, max(1, sentinels - c.closing_sentinel)))


def lengths(t: int, c: Config, sentinels: int) -> tuple[int, int]:
    """Computes (s, t): the lengths of source and target, each with its end, for rows of `t` tokens: (512, 114) of
    568."""
    if c.variant in WHOLE:
        return t + 1, t + 1
    if c.variant == "prefix":
        return t, t
    n = np.arange(1, t + 1)
    noise, spans = noise_counts(n, c, sentinels)
    if c.noise == "tokens":  # more noise than fits is left as it was
        per_token = c.rate * (1 if c.variant == "drop_tokens" else 2 - c.rate)
        return t + 2, min(t + 2, math.ceil(per_token * t + 4 * math.sqrt(per_token * t)) + 2)
    marks = 0 * spans if c.variant == "drop_tokens" else spans
    return int((n - noise + marks).max()) + 1, int((noise + marks).max()) + 1 + c.closing_sentinel


# Drawing


def random_parts(bits: Array, total: Array, parts: Array, most: int) -> Array:
    """Cuts `total` at random, by the bits uint32[n >= total], into `parts` positive numbers, then zeros: i32[most]. All
    ways are equally likely. `most` is static, and at least `parts`."""
    at = jnp.arange(bits.shape[0])
    # After each unit but the last one may be a cut, where there are parts - 1 of them.
    rank = jnp.argsort(jnp.argsort(jnp.where(at < total - 1, bits >> 1, np.uint32(2**32 - 1))))
    number = jnp.cumsum(jnp.pad(rank < parts - 1, (1, 0))[:-1])
    return jnp.zeros(most, jnp.int32).at[number].add((at < total).astype(jnp.int32), mode="drop")


def noise_mask(draws: Array, n: Array, c: Config, sentinels: int) -> Array:
    """Chooses the noise of a text, its first n of t tokens: bool[t]. `draws` are random bits uint32[2, t].

    Spans alternate with other tokens, which come first, so that the text ends in noise; their lengths are random
    compositions.
    """
    t = draws.shape[1]
    at = jnp.arange(t)
    if c.noise == "tokens":
        return (uniform(draws[0]) < c.rate) & (at < n)
    noise, spans = (jnp.asarray(x, jnp.int32)[n] for x in noise_counts(np.arange(t + 1), c, sentinels))
    most = int(noise_counts(np.arange(t + 1), c, sentinels)[1].max())
    others = random_parts(draws[0], jnp.maximum(n, 2) - noise, spans, most)
    inside = random_parts(draws[1], noise, spans, most)
    end = jnp.cumsum(others + inside)
    marks = jnp.zeros(t + 1, jnp.int32).at[jnp.minimum(end - inside, t)].add(1).at[jnp.minimum(end, t)].add(-1)
    return (jnp.cumsum(marks)[:t] > 0) & (at < n)


def corrupt(key: Array, tokens: Array, segment_ids: Array, *, c: Config, ids: Ids) -> tuple[Array, Array, Array, Array]:
    """Makes source and target of one example i32[t], whose padding follows the text, each with an end. Returns (source
    i32[s], its number of tokens i32[], target i32[t'], its number of tokens i32[]); the others are `start`."""
    t, n = tokens.shape[0], (segment_ids > 0).sum()
    real = jnp.arange(t) < n
    sizes = lengths(t, c, len(ids.sentinels))
    draws = jax.random.bits(key, (4, t))  # one call: each takes long to compile
    if c.variant == "deshuffling":
        order = jnp.argsort(jnp.where(real, draws[0] >> 1, np.uint32(2**32 - 1)))
        return _pack(tokens[order], real, sizes[0], n, ids) + _pack(tokens, real, sizes[1], n, ids)
    if c.variant == "prefix":
        prefix = 1 + (uniform(draws[0, 0]) * (n - 1)).astype(jnp.int32)  # up to n - 1
        prefix = jnp.minimum(prefix, jnp.maximum(n - 1, 1))
        begins = jnp.arange(t) < prefix
        return _pack(tokens, real & begins, sizes[0], n, ids) + _pack(tokens, real & ~begins, sizes[1], n, ids)
    noise = noise_mask(draws[:2], n, c, len(ids.sentinels))
    if c.variant in WHOLE:
        shown = jnp.full_like(tokens, ids.sentinels[0])
        if c.variant == "bert":
            drawn = FIRST_RANDOM + (draws[3] % np.uint32(ids.size - FIRST_RANDOM)).astype(jnp.int32)
            shown = jnp.where(uniform(draws[2]) < RANDOM_FRACTION, drawn, shown)
        return _pack(jnp.where(noise, shown, tokens), real, sizes[0], n, ids) + _pack(tokens, real, sizes[1], n, ids)
    if c.noise == "tokens":
        noise = _limit(noise, real, sizes[1], c, len(ids.sentinels))
    if c.variant == "drop_tokens":
        return _pack(tokens, real & ~noise, sizes[0], n, ids) + _pack(tokens, noise, sizes[1], n, ids)
    source = _with_sentinels(tokens, noise, real, ids)
    target = _with_sentinels(tokens, real & ~noise, real, ids)
    closing = None
    if c.closing_sentinel:
        last = jnp.take(noise, jnp.maximum(n - 1, 0))
        closing = jnp.where(last, jnp.asarray(ids.sentinels)[_starts(noise, real).sum()], -1)
    return _pack(*source, sizes[0], n, ids) + _pack(*target, sizes[1], n, ids, closing)


def _starts(chosen: Array, real: Array) -> Array:
    """Tells (bool[t]) where a run of chosen tokens begins."""
    return chosen & ~jnp.pad(chosen, (1, 0))[:-1] & real


def _with_sentinels(tokens: Array, chosen: Array, real: Array, ids: Ids) -> tuple[Array, Array]:
    """Puts a sentinel at the begin of each run of chosen tokens: (tokens i32[t], which of them remain bool[t])."""
    starts = _starts(chosen, real)
    number = jnp.minimum(jnp.cumsum(starts) - 1, len(ids.sentinels) - 1)
    return jnp.where(starts, jnp.asarray(ids.sentinels)[number], tokens), real & (~chosen | starts)


def _limit(noise: Array, real: Array, length: int, c: Config, sentinels: int) -> Array:
    """Limits the noise, from the left, to what fits a target of `length` tokens and so many `sentinels`."""
    if c.variant == "drop_tokens":
        return noise & (jnp.cumsum(noise) < length)
    runs = _starts(real & ~noise, real)
    held = jnp.cumsum(noise | runs)
    # Room for the end, a sentinel of the text that follows, and a closing one.
    return noise & (held <= length - 3) & (jnp.cumsum(_starts(noise, real)) < sentinels) & (
        jnp.cumsum(runs) < sentinels)


def _pack(
    tokens: Array, mask: Array, length: int, n: Array, ids: Ids, closing: Array | None = None
) -> tuple[Array, Array]:
    """Packs the tokens where `mask` holds, `closing` unless it is -1, and the end. Returns (i32[length], the number of
    tokens, 0 for an empty row)."""
    out = jnp.full(length, ids.start, jnp.int32)
    out = out.at[jnp.where(mask, jnp.cumsum(mask) - 1, length)].set(tokens, mode="drop")
    count = mask.sum()
    if closing is not None:
        out = out.at[jnp.where(closing >= 0, count, length)].set(closing, mode="drop")
        count += closing >= 0
    some = n > 0
    return out.at[jnp.where(some, count, length)].set(ids.end, mode="drop"), (count + 1) * some


# The loss


def prepare(keys: Keys, batch: Batch, *, c: Config, ids: Ids) -> Batch:
    """Adds `source` with `tokens` and `segment_ids` i32[b, s]; and of the target `inputs`, `targets` and
    `target_segment_ids` i32[b, t'] and `weights` float32 [b, t']. Inputs are the targets after a start token."""
    source, source_size, targets, size = jax.vmap(partial(corrupt, c=c, ids=ids))(
        keys.per_example, batch["tokens"], batch["segment_ids"])
    in_source, in_target = (jnp.arange(x.shape[1]) < number[:, None]
                            for x, number in ((source, source_size), (targets, size)))
    return batch | {
        "source": {"tokens": source, "segment_ids": in_source.astype(jnp.int32)},
        "inputs": jnp.pad(targets, ((0, 0), (1, 0)), constant_values=ids.start)[:, :-1], "targets": targets,
        "target_segment_ids": in_target.astype(jnp.int32), "weights": normalize_weights(in_target)}


def pair(batch: Batch) -> Batch:
    """Makes the batch that the network reads of a prepared one, as `TextPairs.batch`."""
    return {"tokens": batch["inputs"], "segment_ids": batch["target_segment_ids"], "targets": batch["targets"],
            "source": batch["source"]}


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the targets and, in training, z-loss."""
    hidden = model.encode(params["encoder"], model_inputs(model, pair(batch), conditions_on=Context.SOURCE), key).hidden
    total, nll, correct = smoothed_cross_entropy(
        model, params["encoder"], head_params(params, "span_corruption"), hidden, batch["targets"], batch["weights"],
        key, z_loss=0.0 if key is None else c.z_loss)
    return total, (sums(batch["weights"] > 0, denoising_loss=nll, denoising_accuracy=correct,
                        most_frequent_accuracy=batch["targets"] == most_frequent), carry)


def next_token_logits(params: Tree, hidden: Array, *, model: Model) -> Array:
    """Computes logits float32 [b, t, v] of the decoder's output [b, t, d]."""
    return output_layer(model).logits(params["encoder"], head_params(params, "span_corruption"), hidden)


def predict(params: Tree, batch: Batch, *, model: Model, ids: Ids, k: int = 50) -> dict[str, Array]:
    """Generates `generated` i32[b, k]: the target of each source, `tokens` i32[b, s] of the batch, up to its end, and
    the start token after it; always the most probable token."""
    source = Inputs(batch["tokens"], attention_mask=AttentionMask(batch["segment_ids"]))
    b, encoder = len(batch["tokens"]), params["encoder"]

    def decode(tokens: Array, cache: Tree) -> tuple[Array, Tree]:
        hidden, cache = model.state.decode(encoder, tokens, cache)
        logits = next_token_logits(params, hidden, model=model)
        return jnp.where(jnp.arange(logits.shape[-1]) < ids.size, logits, -jnp.inf), cache  # ids without a token

    generated = decoding.generate(
        decode, lambda number: model.state.cache(encoder, number, k, source=source), b, k, decoding.Search(),
        start=ids.start, end=ids.end, pad=ids.start)
    return {"generated": generated.tokens}


def describe(batch: Batch, tokenizer) -> list[str]:
    """Shows each example as "source => target"."""
    def text(tokens: Array, segment_ids: Array) -> str:
        return " ".join(tokenizer.id_to_token(int(i)) for i in np.asarray(tokens)[np.asarray(segment_ids) > 0])

    return [f"{text(*source)} => {text(*target)}" for source, target in zip(
        zip(batch["source"]["tokens"], batch["source"]["segment_ids"], strict=True),
        zip(batch["targets"], batch["target_segment_ids"], strict=True), strict=True)]


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.SOURCE,
    metrics={
        "denoising_loss": loss_metric("Denoising loss", perplexity=True),
        "denoising_accuracy": accuracy_metric("Accuracy of target tokens", baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
    },
    capabilities=(FillSpans(),),
    loss_fields=("z_loss",),
)
