"""Sampling continuations from a network that reads from left to right."""

from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Tree
from lmrep.models.base import Model
from lmrep.objectives.base import Objective
from lmrep.objectives.capabilities import Sampling


def filter_logits(scores: Array, sampling: Sampling) -> Array:
    """float32 [..., v] -> the same at the temperature, -inf where a token may not be chosen. Equals stay together."""
    # Less the largest, so that a temperature near 0 makes no score infinite but those that fall behind.
    scores = (scores - scores.max(-1, keepdims=True)) / max(sampling.temperature, float(jnp.finfo(jnp.float32).tiny))
    if 0 < sampling.top_k < scores.shape[-1]:
        least = jax.lax.top_k(scores, sampling.top_k)[0][..., -1:]
        scores = jnp.where(scores < least, -jnp.inf, scores)
    if sampling.top_p < 1:
        ordered = jnp.sort(scores, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1) - jax.nn.softmax(ordered)  # of those that are likelier
        least = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        scores = jnp.where(scores < least, -jnp.inf, scores)
    return scores


def generate(
    params: Tree, prompt: Array, size: Array, key: Array, *, model: Model, objective: Objective, sampling: Sampling,
    tokens: int, capacity: int, banned_token_ids: tuple[int, ...] = (),
) -> Array:
    """The next `tokens` tokens of each row of a prompt, i32[b, n] -> i32[b, tokens].

    Args:
      params: {"encoder": ..., "objective": ...}.
      prompt: i32[b, n].
      size: i32[], how many of the n tokens are the prompt, at least one; the others fill it up, so that prompts of many
        lengths share one program.
      key: of all draws; a row's depend on it and on the row's number alone.
      model, objective: one with `decode`, one with `follow`.
      sampling: how a token is chosen.
      tokens: how many.
      capacity: of the cache: n at least, and `size` + `tokens`.
      banned_token_ids: ids that are never chosen, padding say.
    """
    rows = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(prompt.shape[0]))

    def choose(hidden: Array, number: Array) -> Array:
        scores = objective.next_token_logits(params, hidden)[:, 0].at[:, list(banned_token_ids)].set(-jnp.inf)
        if sampling.temperature == 0:
            return scores.argmax(-1).astype(jnp.int32)
        keys = jax.vmap(lambda row: jax.random.fold_in(row, number))(rows)
        return jax.vmap(jax.random.categorical)(keys, filter_logits(scores, sampling)).astype(jnp.int32)

    def step(state: tuple[Array, Tree], number: Array) -> tuple[tuple[Array, Tree], Array]:
        token, cache = state
        hidden, cache = model.decode(params["encoder"], token[:, None], cache)
        following = choose(hidden, number)
        return (following, cache), following

    hidden, cache = model.decode(params["encoder"], prompt, model.start_cache(prompt.shape[0], capacity), size)
    first = choose(jax.lax.dynamic_slice_in_dim(hidden, size - 1, 1, axis=1), jnp.int32(0))
    _, others = jax.lax.scan(step, (first, cache), jnp.arange(1, tokens))
    return jnp.concatenate([first[:, None], others.T], axis=1)
