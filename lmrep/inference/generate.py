"""Continuing texts with a network that reads from left to right, and measuring how well it foresees a text."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.inference.encode import SHORTEST_ROW
from lmrep.models.base import Model
from lmrep.objectives.base import Carry, Objective


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The limits apply one after the other, as they stand here."""

    temperature: float = setting(1.0, "scores are divided by it; 0: the likeliest token always", at_least=0)
    top_k: int = setting(0, "choose among the k likeliest tokens (Fan et al., 2018); 0: among all", at_least=0)
    top_p: float = setting(1.0, "choose among the fewest that have this much of the probability (Holtzman et al., "
                           "2020)", above=0, at_most=1)


def narrowed(scores: Array, how: Sampling) -> Array:
    """float32 [..., v] -> the same at the temperature, -inf where a token may not be chosen. Equals stay together."""
    # Less the largest, so that a temperature near 0 makes no score infinite but those that fall behind.
    scores = (scores - scores.max(-1, keepdims=True)) / max(how.temperature, float(jnp.finfo(jnp.float32).tiny))
    if 0 < how.top_k < scores.shape[-1]:
        least = jax.lax.top_k(scores, how.top_k)[0][..., -1:]
        scores = jnp.where(scores < least, -jnp.inf, scores)
    if how.top_p < 1:
        ordered = jnp.sort(scores, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1) - jax.nn.softmax(ordered)  # of those that are likelier
        least = jnp.min(jnp.where(before < how.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        scores = jnp.where(scores < least, -jnp.inf, scores)
    return scores


def extend(
    params: Tree, prompt: Array, size: Array, key: Array, *, model: Model, objective: Objective, how: Sampling,
    tokens: int, room: int, barred: tuple[int, ...] = (),
) -> Array:
    """The next `tokens` tokens of each row of a prompt, i32[b, n] -> i32[b, tokens].

    Args:
      params: {"encoder": ..., "objective": ...}.
      prompt: i32[b, n].
      size: i32[], how many of the n tokens are the prompt, at least one; the others fill it up, so that prompts of many
        lengths share one program.
      key: of all draws; a row's depend on it and on the row's number alone.
      model, objective: one with `decode`, one with `follow`.
      how: how a token is chosen.
      tokens: how many.
      room: of the cache: n at least, and `size` + `tokens`.
      barred: ids that are never chosen, padding say.
    """
    rows = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(prompt.shape[0]))

    def choose(hidden: Array, number: Array) -> Array:
        scores = objective.follow(params, hidden)[:, 0].at[:, list(barred)].set(-jnp.inf)
        if how.temperature == 0:
            return scores.argmax(-1).astype(jnp.int32)
        keys = jax.vmap(lambda row: jax.random.fold_in(row, number))(rows)
        return jax.vmap(jax.random.categorical)(keys, narrowed(scores, how)).astype(jnp.int32)

    def step(state: tuple[Array, Tree], number: Array) -> tuple[tuple[Array, Tree], Array]:
        token, cache = state
        hidden, cache = model.decode(params["encoder"], token[:, None], cache)
        following = choose(hidden, number)
        return (following, cache), following

    hidden, cache = model.decode(params["encoder"], prompt, model.start_cache(prompt.shape[0], room), size)
    first = choose(jax.lax.dynamic_slice_in_dim(hidden, size - 1, 1, axis=1), jnp.int32(0))
    _, others = jax.lax.scan(step, (first, cache), jnp.arange(1, tokens))
    return jnp.concatenate([first[:, None], others.T], axis=1)


class Foresight(NamedTuple):
    """How well texts were foreseen, from left to right.

    Attributes:
      nats: the sum of -log probability over all tokens that were asked for.
      tokens: how many these are.
      words: of the raw texts, what white space separates.
      bytes: of the raw texts, in UTF-8.
      documents: how many texts.
    """

    nats: float
    tokens: int
    words: int
    bytes: int
    documents: int

    @property
    def figures(self) -> dict[str, float]:
        """`token_perplexity` and `word_perplexity`, which compares models of different tokenizers, and
        `bits_per_byte`."""
        return {"token_perplexity": _exp(self.nats / max(1, self.tokens)),
                "word_perplexity": _exp(self.nats / max(1, self.words)),
                "bits_per_byte": self.nats / math.log(2) / max(1, self.bytes),
                "tokens": self.tokens, "words": self.words, "bytes": self.bytes, "documents": self.documents}


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def windows(length: int, longest: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, first) of the windows that a text of `length` tokens is read in: tokens [start, end) are read, of
    which those from `first` on are asked for, each of the text but its first in one window.

    A window is `longest` tokens and begins `stride` after the one before, so that a token has at least
    `longest - stride` before it, or all that there are.

    Raises:
      UserError: at once, for a stride that leaves tokens out or asks for none.
    """
    if not 0 < stride < longest:
        raise UserError(f"stride is {stride}; expected 1 to {longest - 1}, below the {longest} tokens of a window")

    def found() -> Iterator[tuple[int, int, int]]:
        first, start = 1, 0
        while first < length:
            end = min(start + longest, length)
            yield start, end, first
            first, start = end, start + stride

    return found()


def foresee(
    run: Callable[[dict[str, np.ndarray]], Array], texts: Iterable[np.ndarray], longest: int, stride: int, pad: int,
    tokens: int = 8192, multiple: int = 1,
) -> Iterator[tuple[float, int]]:
    """(nats, tokens asked for) of batches of windows over token sequences, which are taken as they are needed.

    A batch holds windows of like length, of any texts, so that short texts are not mostly padding.

    Args:
      run: a compiled `nats_of` with its parameters.
      texts: int[n] each, beginning with what marks a text's start where there is such a token.
      longest, stride: as of `windows`.
      pad: id of padding.
      tokens: of a batch, about, padding included.
      multiple: of which the rows of a batch are one.
    """
    waiting = None
    for parts, room, rows in _alike(texts, longest, stride, tokens, multiple):
        batch = _batch(parts, room, rows, pad)
        nats = run(batch)
        if waiting:  # the batch before is read while this one is computed
            yield float(waiting[0]), waiting[1]
        waiting = nats, int(batch["weights"].sum())
    if waiting:
        yield float(waiting[0]), waiting[1]


def _alike(
    texts: Iterable[np.ndarray], longest: int, stride: int, tokens: int, multiple: int
) -> Iterator[tuple[list[tuple[np.ndarray, int]], int, int]]:
    """(windows, each with where it is asked from; tokens a row; rows) of batches. Rows have few lengths, each with one
    number of rows, so that little is compiled."""
    waiting: dict[int, list[tuple[np.ndarray, int]]] = {}
    for text in texts:
        for start, end, first in windows(len(text), longest, stride):
            room = min(max(SHORTEST_ROW, 1 << (end - start - 1).bit_length()), longest)
            parts = waiting.setdefault(room, [])
            parts.append((np.array(text[start:end]), first - start))  # a copy: the text, which may be long, can go
            if len(parts) == (rows := _rows(room, tokens, multiple)):
                yield waiting.pop(room), room, rows
    for room, parts in waiting.items():
        yield parts, room, _rows(room, tokens, multiple)


def _rows(room: int, tokens: int, multiple: int) -> int:
    return -(-max(1, tokens // room) // multiple) * multiple


def _batch(parts: Sequence[tuple[np.ndarray, int]], room: int, rows: int, pad: int) -> dict[str, np.ndarray]:
    """Windows one a row, and of which of their tokens the next is asked for."""
    tokens, segments = np.full((rows, room), pad, np.int32), np.zeros((rows, room), np.int32)
    asked = np.zeros((rows, room), np.float32)
    for row, (part, first) in enumerate(parts):
        tokens[row, : len(part)], segments[row, : len(part)] = part, 1
        asked[row, first - 1 : len(part) - 1] = 1
    targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    return {"tokens": tokens, "segment_ids": segments, "targets": targets, "weights": asked}


def nats_of(params: Tree, batch: dict[str, Array], *, objective: Objective) -> Array:
    """The sum of -log probability of the `targets` that have a weight."""
    _, (metrics, _) = objective.loss(params, batch, None, Carry())
    return metrics["token_nats"][0]
