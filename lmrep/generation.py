"""Continuing texts with a network that reads from left to right, and measuring how well it foresees a text."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
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
    scores = scores / how.temperature
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
    """How well a text was foreseen, from left to right.

    Attributes:
      nats: the sum of -log probability over all tokens that were asked for.
      tokens: how many these are.
      words: of the raw text, what white space separates.
      bytes: of the raw text, in UTF-8.
    """

    nats: float
    tokens: int
    words: int
    bytes: int

    @property
    def figures(self) -> dict[str, float]:
        """`token_perplexity` and `word_perplexity`, which compares models of different tokenizers, and
        `bits_per_byte`."""
        return {"token_perplexity": _exp(self.nats / max(1, self.tokens)),
                "word_perplexity": _exp(self.nats / max(1, self.words)),
                "bits_per_byte": self.nats / math.log(2) / max(1, self.bytes),
                "tokens": self.tokens, "words": self.words, "bytes": self.bytes}


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def windows(length: int, longest: int, stride: int) -> list[tuple[int, int, int]]:
    """(start, end, first) of the windows that a text of `length` tokens is read in: tokens [start, end) are read, of
    which those from `first` on are asked for, each of the text but its first in one window.

    A window is `longest` tokens and begins `stride` after the one before, so that a token has at least
    `longest - stride` before it, or all that there are.

    Raises:
      UserError: a stride that leaves tokens out or asks for none.
    """
    if not 0 < stride < longest:
        raise UserError(f"stride is {stride}; expected 1 to {longest - 1}, below the {longest} tokens of a window")
    found, first, start = [], 1, 0
    while first < length:
        end = min(start + longest, length)
        found.append((start, end, first))
        first, start = end, start + stride
    return found


def foresee(
    run: Callable[[dict[str, np.ndarray]], Array], texts: Sequence[np.ndarray], longest: int, stride: int, pad: int,
    rows: int = 8,
) -> Iterator[tuple[float, int]]:
    """(nats, tokens asked for) of batches of windows over token sequences.

    Args:
      run: a compiled `nats_of` with its parameters.
      texts: i32[n] each, beginning with what marks a text's start where there is such a token.
      longest, stride: as of `windows`.
      pad: id of padding.
      rows: windows a batch.
    """
    parts = [(text[start:end], first - start) for text in texts
             for start, end, first in windows(len(text), longest, stride)]
    for number in range(0, len(parts), rows):
        tokens, segments = np.full((rows, longest), pad, np.int32), np.zeros((rows, longest), np.int32)
        asked = np.zeros((rows, longest), np.float32)
        for row, (part, first) in enumerate(parts[number : number + rows]):
            tokens[row, : len(part)], segments[row, : len(part)] = part, 1
            asked[row, first - 1 : len(part) - 1] = 1
        targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        nats = run({"tokens": tokens, "segment_ids": segments, "targets": targets, "weights": asked})
        yield float(nats), int(asked.sum())


def nats_of(params: Tree, batch: dict[str, Array], *, objective: Objective) -> Array:
    """The sum of -log probability of the `targets` that have a weight."""
    _, (metrics, _) = objective.loss(params, batch, None, Carry())
    return metrics["token_nats"][0]
