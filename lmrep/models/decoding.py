"""Generation from a network with a cache: beam search, of which greedy search is the case of one beam.

A text ends with its end token. The score of a text y is log p(y) / penalty(|y|), with the end token counted in |y|. Of
the candidates for the next token of a text's beams, the best `2 beams` are considered; those that end the text are
finished if they are among the best `beams`, as in Hugging Face Transformers. A text is done when `beams` finished ones
are better than the best unfinished one would be if it ended now. What is unfinished at the last token counts as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree

IMPOSSIBLE = -1e9

Decode = Callable[[Array, Tree], tuple[Array, Tree]]  # (tokens i32[b, 1], cache) -> (logits [b, 1, v], cache)


@dataclass(frozen=True)
class Search:
    """How texts are generated."""

    beams: int = setting(1, "beams of beam search; 1: greedy search", at_least=1)
    length_penalty: float = setting(1.0, "scores are divided by (the number of tokens) ** length_penalty, or by Wu et "
                                    "al.'s (2016) ((5 + tokens) / 6) ** length_penalty; 0: none", at_least=0)
    penalty: str = setting("power", "which of the two", choices=("power", "gnmt"))


class Generated(NamedTuple):
    """Generated texts.

    Attributes:
      tokens: i32[b, n], each with its end token, and padding after it.
      lengths: i32[b], tokens of each, with the end token.
      scores: float32 [b].
    """

    tokens: Array
    lengths: Array
    scores: Array


class _Beams(NamedTuple):
    """The state of a search, for k beams of b texts, of n tokens at most."""

    step: Array  # i32[]
    cache: Tree  # leaves with an axis of b k
    tokens: Array  # i32[b, k, n], unfinished
    log_p: Array  # float32 [b, k]
    finished: Array  # i32[b, k, n]
    lengths: Array  # i32[b, k], of the finished ones
    scores: Array  # float32 [b, k]; IMPOSSIBLE where there is none
    done: Array  # bool[b]


def penalty(length: Array, search: Search) -> Array:
    """What the log probability of a text of `length` tokens i32[...] is divided by, float32 [...]."""
    length = length.astype(jnp.float32)
    return (length if search.penalty == "power" else (5 + length) / 6) ** search.length_penalty


def generate(
    decode: Decode, start_cache: Callable[[int], Tree], batch_size: int, tokens: int, search: Search, *, start: int,
    end: int, pad: int = 0,
) -> Generated:
    """The best text for each example.

    Args:
      decode: one step of the network.
      start_cache: n -> the cache of n texts, a multiple of `batch_size`, before the first token; those of an example
        follow each other. Leaves that depend on n in shape are reordered with the beams; others belong to examples.
      batch_size: b.
      tokens: n, the most tokens of a text, with its end.
      search: how they are searched.
      start: the id that precedes the first token.
      end: the id of the end token.
      pad: the id after it.
    """
    special = {"start": start, "end": end, "pad": pad}
    if search.beams == 1:
        return _greedy(decode, start_cache(batch_size), batch_size, tokens, search, **special)
    return _beam_search(decode, start_cache, batch_size, tokens, search, **special)


def _greedy(
    decode: Decode, cache: Tree, b: int, n: int, search: Search, *, start: int, end: int, pad: int
) -> Generated:
    """As `_beam_search` with one beam, without what that does not need."""
    class State(NamedTuple):
        step: Array  # i32[]
        cache: Tree
        tokens: Array  # i32[b, n]
        lengths: Array  # i32[b]
        log_p: Array  # float32 [b]
        done: Array  # bool[b]

    def step(state: State) -> State:
        last = jnp.where(state.step == 0, start, state.tokens[:, jnp.maximum(state.step - 1, 0)])
        logits, cache = decode(last[:, None], state.cache)
        logits = logits[:, 0].astype(jnp.float32)
        largest, token = (x[:, 0] for x in top_k(logits, 1))
        log_p = state.log_p - jnp.where(state.done, 0, jnp.log(jnp.exp(logits - largest[:, None]).sum(-1)))
        return State(state.step + 1, cache, state.tokens.at[:, state.step].set(jnp.where(state.done, pad, token)),
                     state.lengths + ~state.done, log_p, state.done | (token == end))

    state = jax.lax.while_loop(
        lambda state: (state.step < n) & ~state.done.all(), step,
        State(jnp.int32(0), cache, jnp.full((b, n), pad, jnp.int32), *(jnp.zeros(b, x) for x in (
            jnp.int32, jnp.float32, bool))))
    return Generated(state.tokens, state.lengths, state.log_p / penalty(state.lengths, search))


def _beam_search(
    decode: Decode, start_cache: Callable[[int], Tree], b: int, n: int, search: Search, *, start: int, end: int,
    pad: int,
) -> Generated:
    """`generate` with several beams, for b examples of n tokens at most."""
    k, axes = search.beams, _axes(start_cache, b)
    blank = jnp.full((b, k, n), pad, jnp.int32)
    state = _Beams(
        jnp.int32(0), start_cache(b * k), blank, jnp.where(jnp.arange(k) > 0, IMPOSSIBLE, jnp.zeros((b, k))), blank,
        jnp.zeros((b, k), jnp.int32), jnp.full((b, k), IMPOSSIBLE), jnp.zeros(b, bool))

    def going(state: _Beams) -> Array:
        return (state.step < n) & ~state.done.all()

    def step(state: _Beams) -> _Beams:
        at = jnp.maximum(state.step - 1, 0)
        last = jnp.where(state.step == 0, start, state.tokens[:, :, at]).reshape(b * k, 1)
        logits, cache = decode(last, state.cache)
        candidates, beam, token = _candidates(logits[:, 0].astype(jnp.float32), state.log_p)
        texts = jnp.take_along_axis(state.tokens, beam[..., None], 1).at[:, :, state.step].set(token)
        ends = token == end
        # the best texts that end here
        scores = jnp.where(ends & (jnp.arange(len(candidates[0])) < k), candidates / penalty(state.step + 1, search),
                           IMPOSSIBLE)
        scores = jnp.where(state.done[:, None], IMPOSSIBLE, scores)
        finished = _best(k, (state.scores, state.finished, state.lengths),
                         (scores, texts, jnp.broadcast_to(state.step + 1, scores.shape)))
        # and those that go on
        log_p, texts, beam = _best(k, (jnp.where(ends, IMPOSSIBLE, candidates), texts, beam))
        source = (jnp.arange(b)[:, None] * k + beam).reshape(-1)
        cache = jax.tree.map(lambda x, axis: x if axis < 0 else jnp.take(x, source, axis), cache, axes)
        done = state.done | (finished[0][:, -1] >= log_p[:, 0] / penalty(state.step + 1, search))
        return _Beams(state.step + 1, cache, texts, log_p, finished[1], finished[2], finished[0], done)

    state = jax.lax.while_loop(going, step, state)
    unfinished = jnp.where(state.done[:, None], IMPOSSIBLE, state.log_p / penalty(state.step, search))
    scores, texts, lengths = _best(1, (state.scores, state.finished, state.lengths),
                                   (unfinished, state.tokens, jnp.broadcast_to(state.step, unfinished.shape)))
    return Generated(texts[:, 0], lengths[:, 0], scores[:, 0])


def _axes(start_cache: Callable[[int], Tree], b: int) -> Any:
    """For each leaf of what `start_cache` returns, the axis of texts; -1 where it has none."""
    one, two = (jax.eval_shape(lambda n=n: start_cache(n)) for n in (b, 2 * b))
    return jax.tree.map(lambda x, y: next((i for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if m != n),
                                          -1), one, two)


def _candidates(logits: Array, log_p: Array) -> tuple[Array, Array, Array]:
    """The best 2 k texts of one token more, of each example's k beams: logits [b k, v] and log probabilities so far
    [b, k] -> (their log probabilities, the beams that they come from and their last tokens, [b, m] each)."""
    b, k = log_p.shape
    best, tokens = top_k(logits, min(2 * k, logits.shape[-1]))
    largest = best.max(-1, keepdims=True)  # a slice would make XLA's CPU backend sort all
    best = best - largest - jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
    best = best.reshape(b, k, -1) + log_p[..., None]
    candidates, where = jax.lax.top_k(best.reshape(b, -1), min(2 * k, k * best.shape[-1]))
    return candidates, where // best.shape[-1], jnp.take_along_axis(tokens.reshape(b, -1), where, 1)


BLOCK = 128  # logits


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """`jax.lax.top_k` of x [n, v] -> (values, indices i32), [n, k] each. The k largest values are in the k blocks with
    the largest maxima (the first of equal ones), which are found in one vectorised pass: on two cores a fifth of the
    time."""
    n, v = x.shape
    blocks = -(-v // BLOCK)
    if blocks <= k:
        return tuple(jax.lax.top_k(x, k))
    x = jnp.pad(x, ((0, 0), (0, blocks * BLOCK - v)), constant_values=-jnp.inf).reshape(n, blocks, BLOCK)
    _, chosen = jax.lax.top_k(x.max(-1), k)
    chosen = jnp.sort(chosen, -1)  # in the order of the values, so that the first of equal ones is the first
    values, at = jax.lax.top_k(jnp.take_along_axis(x, chosen[..., None], 1).reshape(n, -1), k)
    return values, jnp.take_along_axis(chosen, at // BLOCK, 1) * BLOCK + at % BLOCK


def _best(k: int, *groups: tuple[Array, ...]) -> tuple[Array, ...]:
    """The k entries with the largest scores of groups (scores [b, m], others [b, m, ...]), the first of equal ones."""
    joined = [jnp.concatenate(parts, 1) for parts in zip(*groups, strict=True)]
    _, order = jax.lax.top_k(joined[0], k)
    return tuple(jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), 1) for x in joined)
