"""Targets and orders of XLNet's partial prediction (Yang et al., 2019, sections 2.3 and 2.4), as released.

An example has two parts, which are permuted apart: the first `reuse` tokens, whose states a memory keeps, and the rest.
The first part never sees the second; the second sees all of the first. In each part, spans are chosen until they have
1 / K of its tokens. The chosen tokens and the functional ones (<sep>, <cls>) have random ranks in the order; functional
tokens are seen and never predicted, so that there may be fewer targets than chosen tokens. All other tokens are given:
every position sees them, and they see only one another.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array
from lmrep.core.vocabulary import Vocabulary
from lmrep.models.base import Factorization
from lmrep.objectives.base import Batch
from lmrep.objectives.masking import one_of, sample_index, uniform, word_starts

FUNCTIONAL = ("sep", "cls")


@dataclass(frozen=True)
class Config:
    """The settings of targets and orders."""

    k: float = setting(6.0, "K: one of so many tokens is predicted", at_least=1)
    spans: bool = setting(True, "whether spans are predicted; otherwise independent tokens")
    span_unit: str = setting("pieces", "what the length of a span counts: tokens, as the released code does, or words, "
                             "as the paper says", choices=("pieces", "words"))
    max_span: int = setting(5, "most units of a span; n of them have a probability proportional to 1 / n", at_least=1)
    context: float = setting(0.0, "tokens without a target around a span, for each of its units (released: 6); 0: K",
                             at_least=0)
    reuse: int = setting(-1, "tokens of the first part, which does not see the second: those whose states a memory "
                         "keeps; -1: half of the example, 0: none", at_least=-1)
    block: int = setting(0, "tokens that are permuted among themselves, in the same way in all blocks of a part; 0: a "
                         "part is one block", at_least=0)


def max_predictions(c: Config, length: int) -> int:
    """Computes m, the static number of predicted positions of an example of `length` tokens: 85 of 512."""
    return max(1, math.floor(length / c.k))


def sample(
    key: Array, tokens: Array, segment_ids: Array, reversed: Array, *, c: Config, vocabulary: Vocabulary
) -> Batch:
    """Draws the targets and the order of one example i32[t], whose tokens are in the reverse order of the text where
    `reversed` i32[] is 1. Returns `revealed` and `sees` i32[t] (`Factorization`); `predicted` i32[m], positions from
    left to right; `targets` i32[m], their tokens; `target_mask` bool[m], which of the m are used."""
    t = tokens.shape[0]
    first = min(t // 2 if c.reuse < 0 else c.reuse, t)  # the length of the first part
    draws = jax.random.bits(key, (4, t))  # one call: each takes long to compile
    real = segment_ids > 0
    functional = real & one_of(tokens, vocabulary.specials, FUNCTIONAL)
    goals = _goals(real, first, c)
    chosen, revealed, floor = [], [], 0
    for part, goal in zip((slice(0, first), slice(first, t)), goals, strict=True):
        length = part.stop - part.start
        if not length:
            continue
        picked = _choose(tokens[part], real[part], reversed, goal, draws[:3, part], c, vocabulary)
        ranks, most = _ranks(draws[3, part], c, length)
        # A given token is below all ranks of its part, and above what the part before may see.
        revealed.append(floor + jnp.where(picked | functional[part], ranks, -1))
        chosen.append(picked)
        floor += most + 1
    chosen, revealed = jnp.concatenate(chosen), jnp.concatenate(revealed)
    targets = chosen & ~functional
    m = max_predictions(c, t)
    predicted = jax.lax.top_k(jnp.where(targets, t - jnp.arange(t), 0), m)[1]
    return {"revealed": revealed, "sees": jnp.where(targets, revealed, revealed + 1), "predicted": predicted,
            "targets": tokens[predicted], "target_mask": targets[predicted]}


def _goals(real: Array, first: int, c: Config) -> tuple[Array, Array]:
    """Computes how many tokens are chosen in the two parts: 43 and 42 of 256 each."""
    # a table from the host, since float32 rounds differently
    table = [0] + [max_predictions(c, n) for n in range(1, real.shape[0] + 1)]
    total, count = jnp.asarray(table, jnp.int32)[real.sum()], real.sum()
    second = total * real[first:].sum() // jnp.maximum(count, 1)
    return total - second, second


def _ranks(bits: Array, c: Config, length: int) -> tuple[Array, int]:
    """Draws the rank of each position of a part in its order, i32[length]. Returns it with a number above all ranks."""
    block = min(c.block or length, length)
    rank = jnp.argsort(jnp.argsort(bits[:block])).astype(jnp.int32)
    at = np.arange(length, dtype=np.int32)
    return at // block * block + rank[at % block], -(-length // block) * block


def _choose(
    tokens: Array, real: Array, reversed: Array, goal: Array, draws: Array, c: Config, vocabulary: Vocabulary
) -> Array:
    """Chooses tokens of a part, bool[t]: `goal` of them, or all. `draws` are random bits uint32[3, t]."""
    t = tokens.shape[0]

    def turn(x: Array) -> Array:  # spans are chosen in the order of the text
        return jnp.where(reversed > 0, x[::-1], x)

    shown, read = turn(tokens), turn(real)
    chosen = jnp.zeros(t, bool)
    if c.spans:
        steps = min(t, math.ceil(t / c.k) + 1)  # of at least one token each
        chosen = _spans(word_starts(shown, vocabulary) & read, read, goal, draws[:2, :steps], c)
    # single tokens for what is lacking
    rank = jnp.argsort(jnp.argsort(jnp.where(read & ~chosen, uniform(draws[2]), 2.0)))
    return turn(chosen | (read & ~chosen & (rank < goal - chosen.sum())))


def _spans(starts: Array, real: Array, goal: Array, draws: Array, c: Config) -> Array:
    """Chooses the tokens of spans, bool[t], from left to right, until `goal` are chosen or the part ends. Spans start
    at `starts` bool[t], a word's first token; `draws` uint32[2, n] are random bits of n spans at most."""
    t, at = starts.shape[0], jnp.arange(starts.shape[0])
    end_of_text = jnp.where(real, at + 1, 0).max()
    next_start = jnp.append(jax.lax.cummin(jnp.where(starts, at, t), reverse=True), t)
    word = jnp.append(jnp.cumsum(starts) - 1, t)
    start_of_word = jnp.full(t + c.max_span + 1, t).at[jnp.where(starts, word[:t], t + c.max_span + 1)].set(
        at, mode="drop")
    sizes = jnp.asarray([math.floor(n * (c.context or c.k)) for n in range(c.max_span + 1)], jnp.int32)

    def add(carry: tuple[Array, Array, Array], bits: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        position, remaining, going = carry
        n = jnp.minimum(1 + sample_index(bits[0], 1 / np.arange(1, c.max_span + 1)), remaining)
        around = sizes[n]
        before = jnp.minimum((uniform(bits[1]) * around).astype(jnp.int32), around - 1)
        begin = next_start[jnp.minimum(position + before, t)]
        end = begin + n
        if c.span_unit == "words":
            end = start_of_word[jnp.minimum(word[begin] + n, t + c.max_span)]
        going &= (remaining > 0) & (begin < t) & (end < end_of_text)
        end = jnp.minimum(end, begin + remaining)
        span = jnp.where(going, begin, t), jnp.where(going, end, t)
        return (end + around - before, remaining - jnp.where(going, end - begin, 0), going), span

    start = jnp.int32(0), goal.astype(jnp.int32), jnp.bool_(True)
    _, (begins, ends) = jax.lax.scan(add, start, draws.T)
    return jnp.cumsum(jnp.zeros(t + 1, jnp.int32).at[begins].add(1).at[ends].add(-1))[:t] > 0


def left_to_right(tokens: Array) -> Factorization:
    """Returns the order in which every token of i32[b, t] is predicted from the tokens before it."""
    order = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return Factorization(order, order)


def all_but(hidden: Array) -> Factorization:
    """Returns the order in which the tokens at `hidden` bool[b, t] are predicted from all other tokens alone."""
    return Factorization(jnp.where(hidden, 0, -1), jnp.zeros(hidden.shape, jnp.int32))
