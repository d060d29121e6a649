"""Masking of tokens by the rules of BERT, RoBERTa and ALBERT, and the sampling functions that objectives share.

`mask_example` masks an example. Published rules differ in how many tokens are predicted, whether special tokens may be
predicted, whether single tokens, words or n-grams are masked, and what replaces them: the fields of `Config`.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.core.vocabulary import Vocabulary
from lmrep.objectives.base import Batch, EvaluationKeys, Keys
from lmrep.objectives.uses import HeldOut


@dataclass(frozen=True)
class Config:
    """The choice of tokens and of their replacements."""

    rate: float = setting(0.15, "fraction of an example's tokens that is predicted", above=0, at_most=1)
    final_rate: float = setting(0.0, "rate after `rate_steps` updates, to which it changes linearly; 0: always `rate`",
                                at_least=0, at_most=1)
    rate_steps: int = setting(0, "updates in which the rate changes to `final_rate`", at_least=0)
    evaluation_rate: float = setting(0.0, "rate on validation; 0: the last one of training", at_least=0, at_most=1)
    mask: float = setting(0.8, "fraction of the chosen tokens replaced by [MASK]", at_least=0, at_most=1)
    keep: float = setting(0.1, "fraction of the chosen tokens left unchanged", at_least=0, at_most=1)
    random: float = setting(0.1, "fraction of the chosen tokens replaced by a random token", at_least=0, at_most=1)
    masking: str = setting("dynamic", "new masks at every step, or masks that the number of the example determines, "
                           "`format.duplicates` of each", choices=("dynamic", "static"))
    count: str = setting("round", "BERT: max(1, round(rate * n)) of an example's n tokens; "
                         "RoBERTa: floor(rate * n + u), u uniform in [0, 1)", choices=("round", "floor"))
    mask_specials: bool = setting(False, "whether [CLS] and [SEP] may be predicted (RoBERTa: yes)")
    random_specials: bool = setting(True, "whether random tokens may be special, as in BERT; otherwise of special "
                                    "tokens only [MASK]")
    whole_word: bool = setting(False, "whether all tokens of a word are masked together")
    ngram: int = setting(0, "n-grams of up to this many whole words are masked together, with a probability "
                         "proportional to 1 / n (ALBERT: 3); 0: none", at_least=0)
    max_predictions: int = setting(0, "most predicted tokens of an example; 0: as many as the rate gives", at_least=0)


def check(c: Config) -> None:
    """Raises UserError if fields do not fit each other."""
    if not math.isclose(c.mask + c.keep + c.random, 1, abs_tol=1e-6):
        raise UserError(f"objective.mask + keep + random is {c.mask + c.keep + c.random:g}; they are fractions of the "
                        "chosen tokens and must add to 1, for example 0.8 + 0.1 + 0.1")


def check_rates(c: Config) -> None:
    """Raises UserError if the fields of a rate that changes do not fit each other."""
    if bool(c.final_rate) != bool(c.rate_steps):
        raise UserError(f"objective.final_rate is {c.final_rate:g} and objective.rate_steps is {c.rate_steps}; set "
                        "both for a rate that changes, or neither")
    if c.final_rate and c.masking == "static":
        raise UserError(f"objective.final_rate is {c.final_rate:g}, and objective.masking=static has the same masks at "
                        "every step; set masking to dynamic, or final_rate and rate_steps to 0")


def check_mask_token(objective: str, vocabulary: Vocabulary) -> None:
    """Raises UserError if there is no mask token."""
    if "mask" not in vocabulary.specials:
        raise UserError(f"objective={objective} needs a [MASK] token, which this tokenizer lacks; "
                        f"it has {', '.join(vocabulary.specials)}")


def rate_at(keys: Keys, c: Config) -> float | Array:
    """Returns the rate of the batch that `keys` belong to: float32[] where it changes during training, else a Python
    number. On validation it does not depend on the step."""
    if isinstance(keys, EvaluationKeys):
        return c.evaluation_rate or c.final_rate or c.rate
    if not c.final_rate:
        return c.rate
    return c.rate + (c.final_rate - c.rate) * jnp.minimum(1.0, keys.step / c.rate_steps)


def max_predictions(c: Config, length: int, rate: float | None = None) -> int:
    """Computes m, the static number of predicted positions of an example of `length` tokens, at most `rate` of them, by
    default c.rate."""
    rate = c.rate if rate is None else rate
    most = max(1, round(rate * length)) if c.count == "round" else math.floor(rate * length + 1)
    return min(most, length, c.max_predictions or most)


def mask_example(
    key: Array, tokens: Array, segment_ids: Array, *, c: Config, vocabulary: Vocabulary,
    rate: float | Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Masks one example i32[t] by the rule of Devlin et al. (2019, section 3.1), at the `rate` of `rate_at`, by default
    c.rate. Returns (inputs i32[t], predicted positions i32[m], their tokens i32[m], target_mask bool[m], which of the m
    are used)."""
    rate = c.rate if rate is None else rate
    most = max(c.rate, c.final_rate) if isinstance(rate, jax.Array) else rate  # m does not depend on the step
    special, m = vocabulary.specials, max_predictions(c, tokens.shape[0], most)
    draws = jax.random.bits(key, (4 + (c.ngram > 1), *tokens.shape))  # one call: each takes a second to compile
    choice, action, fraction = uniform(draws[0]), uniform(draws[1])[:m], uniform(draws[2, 0])
    replacements = random_tokens(draws[3, :m], c, vocabulary)
    real = segment_ids > 0
    maskable = real
    if not c.mask_specials:
        maskable &= ~one_of(tokens, special, ("cls", "sep", "bos", "eos", "pad"))
    count = jnp.minimum(num_predictions(fraction, real.sum(), tokens.shape[0], c, rate), m)

    words_together = c.whole_word or c.ngram > 0
    if words_together:
        lengths = 1 + sample_index(draws[4], 1 / np.arange(1, c.ngram + 1)) if c.ngram > 1 else None
        starts_word = word_starts(tokens, vocabulary)
        chosen = _choose_words(choice, maskable, segment_ids, starts_word, count, lengths, max(1, c.ngram))
        order = chosen.astype(jnp.float32)
    else:
        order = jnp.where(maskable, choice, -1.0)
        count = jnp.minimum(count, maskable.sum())
    _, predicted = jax.lax.top_k(order, m)
    target_mask = chosen[predicted] if words_together else jnp.arange(m) < count

    targets = tokens[predicted]
    shown = jnp.where(action < c.mask, special["mask"], jnp.where(action < c.mask + c.random, replacements, targets))
    return tokens.at[predicted].set(jnp.where(target_mask, shown, targets)), predicted, targets, target_mask


def uniform(bits: Array) -> Array:
    """Maps random bits uint32 to float32 in [0, 1)."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def sample_index(bits: Array, weights: np.ndarray) -> Array:
    """Maps random bits uint32 to i32, i with probability weights[i] / sum(weights) within 2^-32; weights are above
    0."""
    below = np.cumsum(weights, dtype=np.float64)[:-1] / np.sum(weights, dtype=np.float64)
    limits = np.minimum(below * 2.0**32, 2.0**32 - 1).astype(np.uint32)
    return jnp.searchsorted(jnp.asarray(limits), bits, side="right").astype(jnp.int32)


def num_predictions(fraction: Array, n: Array, length: int, c: Config, rate: float | Array) -> Array:
    """Computes the number of predicted tokens of an example with n real tokens, special ones included."""
    if c.count == "floor":
        return jnp.floor(rate * n + fraction).astype(jnp.int32)
    if isinstance(rate, jax.Array):
        return jnp.where(n > 0, jnp.maximum(1, jnp.round(rate * n)), 0).astype(jnp.int32)
    # A table from the host: 0.15 * n in float32 rounds differently from the published code's float64.
    table = [0] + [max(1, round(rate * i)) for i in range(1, length + 1)]
    return jnp.asarray(table, jnp.int32)[n]


def one_of(tokens: Array, specials: dict[str, int], roles: tuple[str, ...]) -> Array:
    """Tells which tokens are special tokens of these roles, bool like `tokens`."""
    ids = sorted({specials[role] for role in roles if role in specials})
    return (tokens[..., None] == jnp.asarray(ids, tokens.dtype)).any(-1)


def word_starts(tokens: Array, vocabulary: Vocabulary) -> Array:
    """Tells (bool[t]) which tokens i32[t] of an example start a word."""
    if vocabulary.ends_word is None:
        return jnp.asarray(vocabulary.starts_word)[tokens]
    return jnp.pad(jnp.asarray(vocabulary.ends_word)[tokens], (1, 0), constant_values=True)[:-1]


def random_tokens(bits: Array, c: Config, vocabulary: Vocabulary) -> Array:
    """Draws a token for each of the random `bits`, uniform over the vocabulary, with or without special tokens.
    (fairseq excludes its four special tokens, but not its mask.)"""
    if c.random_specials:
        return (bits % np.uint32(vocabulary.size)).astype(jnp.int32)
    excluded = {i for role, i in vocabulary.specials.items() if role != "mask"}
    allowed = np.array([i for i in range(vocabulary.size) if i not in excluded], np.int32)
    return jnp.asarray(allowed)[bits % np.uint32(len(allowed))]


def _choose_words(
    choice: Array, maskable: Array, segment_ids: Array, starts_word: Array, count: Array,
    lengths: Array | None = None, max_ngram: int = 1,
) -> Array:
    """Chooses whole words in random order, each if all of it fits: bool[t].

    A continuation token belongs to the previous maskable token of its packed segment, even across a separator, as in
    BERT's script (where the second text of a pair, truncated at its front, may start inside a word).

    With `lengths` i32[t], of 1 to `max_ngram`, word i starts an n-gram of lengths[i] words, which is shortened until it
    fits, skipped if one of its words was chosen before, and ends with its packed segment.
    """
    t = maskable.shape[0]
    before = jnp.pad(jax.lax.cummax(jnp.where(maskable, segment_ids, 0)), (1, 0))[:-1]  # segment of the previous token
    first = maskable & (starts_word | (segment_ids > before))
    word = jnp.where(maskable, jnp.cumsum(first) - 1, t)  # t: none
    sizes = jnp.zeros(t + 1, jnp.int32).at[word].add(1)[:t]
    order = jnp.argsort(jnp.where(sizes > 0, choice, 2.0))
    if max_ngram > 1:
        chosen = _choose_runs(order, word, sizes, segment_ids, count, lengths, max_ngram)
        return jnp.append(chosen, False)[word]

    def take(total: Array, size: Array) -> tuple[Array, Array]:
        fits = (size > 0) & (total + size <= count)
        return jnp.where(fits, total + size, total), fits

    _, fits = jax.lax.scan(take, jnp.int32(0), sizes[order])
    taken = jnp.zeros(t + 1, bool).at[order].set(fits)
    return taken[word] & maskable


def _choose_runs(
    order: Array, word: Array, sizes: Array, segment_ids: Array, count: Array, lengths: Array, max_ngram: int
) -> Array:
    """Chooses words, bool[t]; `order`, `sizes` and `lengths` are indexed by word, `word` by position."""
    t, runs = order.shape[0], jnp.arange(max_ngram)
    segment = jnp.zeros(t + max_ngram, jnp.int32).at[word].max(segment_ids)[:t]
    ahead = jnp.arange(t)[:, None] + runs  # [t, n]: a word and the next ones
    along = jnp.where(ahead < t, segment[ahead.clip(0, t - 1)], 0) == segment[:, None]  # in its packed segment
    # tokens of n-grams of 1, 2, ... words
    totals = jnp.cumsum(jnp.where(along, sizes[ahead.clip(0, t - 1)], 0), axis=1)

    def take(carry: tuple[Array, Array], word: tuple) -> tuple[tuple[Array, Array], None]:
        number, taken = carry
        first, length, totals, along = word
        n = ((runs < length) & (number + totals <= count)).sum()  # the number of words that fit
        run = (runs < n) & along
        earlier = jax.lax.dynamic_slice(taken, (first,), (max_ngram,))
        n = jnp.where((earlier & run).any() | (totals[0] == 0), 0, n)
        taken = jax.lax.dynamic_update_slice(taken, earlier | (run & (n > 0)), (first,))
        return (number + jnp.where(n > 0, totals[n - 1], 0), taken), None

    start = jnp.int32(0), jnp.zeros(t + max_ngram, bool)
    (_, taken), _ = jax.lax.scan(take, start, (order, lengths[order], totals[order], along[order]))
    return taken[:t]


def pair_label(batch: Batch, example: int) -> str:
    """Shows the label of the sentence pair at index `example`; "" if it is not predicted."""
    return f"[pair label {int(batch['pair_label'][example])}] " if "pair_weights" in batch else ""


def held_out(batch: Batch) -> HeldOut:
    """Returns the masked tokens, as `Uses.held_out`."""
    return HeldOut(batch["inputs"], batch["predicted"], jnp.where(batch["weights"] > 0, batch["targets"], -1))


def describe(batch: Batch, tokenizer, *, spans: bool = False) -> list[str]:
    """Shows each example with its targets marked: "the {cat -> [MASK]} sat", or {cat = cat} where unchanged. With
    `spans`, adjacent targets are shown together: "the {old cat -> [MASK] [MASK]} sat", in double braces if they are
    predicted from their boundary too."""
    texts = []
    for i in range(len(batch["tokens"])):
        inputs, tokens, segments, predicted = (
            np.asarray(batch[name][i]) for name in ("inputs", "tokens", "segment_ids", "predicted"))
        masked, bounded = ({int(at) for at in predicted[np.asarray(batch[name][i]) > 0]} if name in batch else set()
                           for name in ("weights", "boundary_weights"))
        groups: list[list[int]] = []  # positions that are shown together
        for at in np.flatnonzero(segments).tolist():
            if spans and {at - 1, at} <= masked and segments[at - 1] == segments[at]:
                groups[-1].append(at)
            else:
                groups.append([at])
        words = []
        for group in groups:
            original, shown = (" ".join(tokenizer.id_to_token(int(ids[at])) for at in group)
                               for ids in (tokens, inputs))
            text = f"{{{original} {'=' if shown == original else '->'} {shown}}}" if group[0] in masked else original
            words.append(f"{{{text}}}" if group[0] in bounded else text)
        texts.append(pair_label(batch, i) + " ".join(words))
    return texts
