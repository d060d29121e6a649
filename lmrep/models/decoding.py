"""Generation from a network with a cache: beam search (greedy search with one beam) and sampling.

A text ends with its end token. The score of a text y is log p(y) / penalty(|y|), with the end token counted in |y|. Of
the candidates for the next token of a text's beams, the best `2 beams` are considered; those that end the text are
finished if they are among the best `beams`, as in Hugging Face Transformers. A text is done when `beams` finished ones
are better than the best unfinished one would be if it ended now. Texts that are unfinished at the last token are scored
as they are. The draws of a text depend only on the seed, the index of its example and the number of the sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree

IMPOSSIBLE = -1e9

Decode = Callable[[Array, Tree], tuple[Array, Tree]]  # (tokens i32[b, 1], cache) -> (logits [b, 1, v], cache)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The limits apply one after the other, in this order."""

    temperature: float = setting(1.0, "logits are divided by it; 0: always the most probable token", at_least=0)
    top_k: int = setting(0, "choose among the k most probable tokens (Fan et al., 2018); 0: among all", at_least=0)
    top_p: float = setting(1.0, "choose among the fewest tokens that have this much of the probability (Holtzman et "
                           "al., 2020)", above=0, at_most=1)


@dataclass(frozen=True)
class Search(Sampling):
    """How texts are generated: the most probable ones, as far as a search finds them, or drawn ones."""

    temperature: float = setting(0.0, "logits are divided by it, and tokens drawn; 0: greedy or beam search",
                                 at_least=0)
    samples: int = setting(1, "texts that are drawn for each, the first of which is measured", at_least=1,
                           at_most=2**16)
    seed: int = setting(0, "the same seed draws the same texts", at_least=0, at_most=2**32 - 1)
    beams: int = setting(1, "beams of beam search; 1: greedy search", at_least=1, at_most=1024)
    length_penalty: float = setting(1.0, "scores are divided by (the number of tokens) ** length_penalty, or by Wu et "
                                    "al.'s (2016) ((5 + tokens) / 6) ** length_penalty; 0: none", at_least=0)
    penalty: str = setting("power", "which of the two", choices=("power", "gnmt"))


def check(search: Search) -> None:
    """Raises UserError where fields do not fit each other."""
    default = Search()
    changed = [name for name in ("samples", "top_k", "top_p") if getattr(search, name) != getattr(default, name)]
    if not search.temperature and changed:
        raise UserError(f"{changed[0]} is {getattr(search, changed[0])} and temperature 0, with which nothing is "
                        "drawn; set temperature to 1, for example")
    if search.temperature and search.beams > 1:
        raise UserError(f"beams is {search.beams} and temperature {search.temperature:g}: texts are searched or drawn; "
                        "set beams to 1, or temperature to 0")


class Generated(NamedTuple):
    """Generated texts, one for each of b examples; b `samples` drawn ones, the samples of an example one after
    another."""

    tokens: Array  # i32[b, n], each with its end token, and padding after it
    lengths: Array  # i32[b], tokens of each, with the end token
    scores: Array  # float32 [b]


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
    """Returns the divisor float32 [...] of the log probabilities of texts of `length` tokens i32[...]."""
    length = length.astype(jnp.float32)
    return (length if search.penalty == "power" else (5 + length) / 6) ** search.length_penalty


def filter_logits(logits: Array, sampling: Sampling) -> Array:
    """Filters logits float32 [..., v]: returns them divided by the temperature, -inf for tokens that are not sampled.
    Of tokens with equal logits all are kept, or none."""
    # The largest is subtracted, so that a temperature near 0 makes no logit infinite but smaller ones.
    logits = (logits - logits.max(-1, keepdims=True)) / max(sampling.temperature, float(jnp.finfo(jnp.float32).tiny))
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    if sampling.top_p < 1:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1) - jax.nn.softmax(ordered)  # of more probable tokens
        threshold = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    return logits


def draw(keys: Array, number: Array, logits: Array, sampling: Sampling) -> Array:
    """Draws the next token i32[b] of each text from logits float32 [b, v] by its key and its `number` i32[]."""
    if sampling.temperature == 0:
        return logits.argmax(-1).astype(jnp.int32)
    keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
    return jax.vmap(jax.random.categorical)(keys, filter_logits(logits, sampling)).astype(jnp.int32)


def generate(
    decode: Decode, start_cache: Callable[[int], Tree], batch_size: int, tokens: int, search: Search, *, start: int,
    end: int, pad: int = 0, examples: Array | None = None, skip: Array | None = None,
) -> Generated:
    """Generates the best text for each example, or with a temperature the drawn ones.

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
      examples: i32[b], the indices of the examples, by which texts are drawn; by default 0 to b - 1.
      skip: bool[b], examples for which nothing is generated; None: for none.
    """
    skip = jnp.zeros(batch_size, bool) if skip is None else skip
    special = {"start": start, "end": end, "pad": pad}
    if search.temperature:
        examples = jnp.arange(batch_size) if examples is None else examples
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(search.seed)))(examples)
        keys = jax.vmap(lambda key: jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(search.samples)))(keys)
        return _token_by_token(decode, start_cache(keys.size), tokens, search, partial(
            _drawn, keys=keys.reshape(-1), search=search), jnp.repeat(skip, search.samples), **special)
    if search.beams == 1:
        return _token_by_token(decode, start_cache(batch_size), tokens, search, _most_probable, skip, **special)
    return _beam_search(decode, start_cache, skip, tokens, search, **special)


def _most_probable(logits: Array, step: Array) -> tuple[Array, Array]:
    """Returns the most probable token i32[b] by logits float32 [b, v], and its log probability [b]."""
    largest, token = (x[:, 0] for x in top_k(logits, 1))
    return token, -jnp.log(jnp.exp(logits - largest[:, None]).sum(-1))


def _drawn(logits: Array, step: Array, *, keys: Array, search: Search) -> tuple[Array, Array]:
    """Draws a token i32[b]. Returns it with its log probability [b] at temperature 1 among all tokens."""
    token = draw(keys, step, logits, search)
    return token, jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]


def _token_by_token(
    decode: Decode, cache: Tree, n: int, search: Search, choose: Callable[[Array, Array], tuple[Array, Array]],
    skip: Array, *, start: int, end: int, pad: int,
) -> Generated:
    """Generates b texts of at most n tokens, one token at a time; none where `skip` bool[b]. `choose` returns the next
    token and its log probability, from the logits and the number of the token."""
    b = len(skip)

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
        token, token_log_p = choose(logits[:, 0].astype(jnp.float32), state.step)
        log_p = state.log_p + jnp.where(state.done, 0, token_log_p)
        return State(state.step + 1, cache, state.tokens.at[:, state.step].set(jnp.where(state.done, pad, token)),
                     state.lengths + ~state.done, log_p, state.done | (token == end))

    state = jax.lax.while_loop(
        lambda state: (state.step < n) & ~state.done.all(), step,
        State(jnp.int32(0), cache, jnp.full((b, n), pad, jnp.int32), jnp.zeros(b, jnp.int32), jnp.zeros(b), skip))
    return Generated(state.tokens, state.lengths, state.log_p / penalty(jnp.maximum(state.lengths, 1), search))


def _beam_search(
    decode: Decode, start_cache: Callable[[int], Tree], skip: Array, n: int, search: Search, *, start: int, end: int,
    pad: int,
) -> Generated:
    """Generates with several beams, for examples of n tokens at most; nothing where `skip` bool[b]."""
    b, k = len(skip), search.beams
    # The axis of texts in each leaf of the cache; -1 where a leaf has none.
    small, large = (jax.eval_shape(lambda n=n: start_cache(n)) for n in (b, 2 * b))
    axes = jax.tree.map(lambda x, y: next(
        (i for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if m != n), -1), small, large)
    blank = jnp.full((b, k, n), pad, jnp.int32)
    state = _Beams(
        jnp.int32(0), start_cache(b * k), blank, jnp.where(jnp.arange(k) > 0, IMPOSSIBLE, jnp.zeros((b, k))), blank,
        jnp.zeros((b, k), jnp.int32), jnp.full((b, k), IMPOSSIBLE), skip)

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


def _candidates(logits: Array, log_p: Array) -> tuple[Array, Array, Array]:
    """Returns the best 2 k texts of one token more, of each example's k beams: logits [b k, v] and log probabilities so
    far [b, k] -> (their log probabilities, the beams that they come from and their last tokens, [b, m] each)."""
    b, k = log_p.shape
    best, tokens = top_k(logits, min(2 * k, logits.shape[-1]))
    largest = best.max(-1, keepdims=True)  # a slice would make XLA's CPU backend sort all
    best = best - largest - jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
    best = best.reshape(b, k, -1) + log_p[..., None]
    candidates, where = jax.lax.top_k(best.reshape(b, -1), min(2 * k, k * best.shape[-1]))
    return candidates, where // best.shape[-1], jnp.take_along_axis(tokens.reshape(b, -1), where, 1)


BLOCK = 128  # logits


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """Computes `jax.lax.top_k` of x [n, v] -> (values, indices i32), [n, k] each. The k largest values are in the k
    blocks with the largest maxima (the first of equal ones), which are found in one vectorised pass: on two cores a
    fifth of the time."""
    n, v = x.shape
    blocks = -(-v // BLOCK)
    if blocks <= k:
        return tuple(jax.lax.top_k(x, k))
    x = jnp.pad(x, ((0, 0), (0, blocks * BLOCK - v)), constant_values=-jnp.inf).reshape(n, blocks, BLOCK)
    _, block_ids = jax.lax.top_k(x.max(-1), k)
    block_ids = jnp.sort(block_ids, -1)  # in the order of the values, so that the first of equal ones is the first
    values, at = jax.lax.top_k(jnp.take_along_axis(x, block_ids[..., None], 1).reshape(n, -1), k)
    return values, jnp.take_along_axis(block_ids, at // BLOCK, 1) * BLOCK + at % BLOCK


def _best(k: int, *groups: tuple[Array, ...]) -> tuple[Array, ...]:
    """Returns the k entries with the largest scores in groups (scores [b, m], others [b, m, ...]), first of ties."""
    joined = [jnp.concatenate(parts, 1) for parts in zip(*groups, strict=True)]
    _, order = jax.lax.top_k(joined[0], k)
    return tuple(jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), 1) for x in joined)
