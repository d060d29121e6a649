"""Samples continuations from a network that predicts from left to right."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.characters import known_ids
from lmrep.data.tokenized_text import tokenize_text
from lmrep.inference.encode import padded_length
from lmrep.inference.special_tokens import of_roles
from lmrep.models.base import Model
from lmrep.models.decoding import Sampling, draw
from lmrep.objectives.base import Objective

BATCH_SIZE = 64  # continuations that are generated at a time


def prompt(run: Any, text: str, name: str | None = None) -> list[int]:
    """Tokenizes a text and puts the run's `start_token` before it, if there is one. A converted checkpoint continues a
    text without a start token, as the published implementation does, unless the text is empty or its tokenizer puts one
    there (`Run.recorded_start`).

    Raises:
      UserError: the text is empty and there is no start token.
    """
    ids = tokenize_text(text, run.tokenizer, name, ([], [])).ids
    ids = known_ids(ids, run.tokenizer.vocabulary).tolist()
    without = ids and run.converted and not (run.recorded_start and run.recorded_start["before"])
    prompt_ids = ids if run.start_token is None or without else [run.start_token, *ids]
    if not prompt_ids:
        raise UserError(f"{name or 'a text'} is empty, and {run.directory} was trained without a token before the "
                        "first one of a document; give at least one word")
    return prompt_ids


def compiled(run: Any) -> Callable[..., Array]:
    """Compiles `generate` for a run."""
    # A converted checkpoint may generate any token, as in the published implementation.
    never = set() if run.converted else of_roles(
        run.tokenizer.vocabulary, "pad", "cls", "mask", "unk", "bos") - run.end_tokens
    banned = never | set(range(run.tokenizer.size, run.model.vocab_size))  # ids without a token
    function = partial(generate, model=run.model, objective=run.objective, banned_token_ids=tuple(sorted(banned)))
    return jax.jit(function, static_argnames=("sampling", "tokens", "capacity"))


def continuations(run: Any, prompt: Sequence[int], options: Any, number: int, name: str) -> list[list[int]]:
    """Samples continuations of a prompt; returns the ids of each, up to the end of its document.

    Args:
      run: the trained run.
      prompt: ids.
      options: an object with `tokens`, `samples`, `seed` and the fields of `Sampling`.
      number: the index of the prompt; draws depend on it and on the seed.
      name: the prompt's name in messages.

    Raises:
      UserError: the network cannot generate, or the prompt and its continuation are longer than it takes.
    """
    max_length = run.model.max_length
    if run.model.state.decode is None:
        raise UserError(f"the network {run.model.name!r} cannot continue a text token by token, since its Model has no "
                        "state.decode; networks that have are transformer, transformer_xl and lstm")
    if 0 < max_length < len(prompt) + options.tokens:
        raise UserError(f"{name} has {len(prompt):,} tokens, and {options.tokens:,} are to be generated; the model "
                        f"takes {max_length:,} at most: generate fewer (--tokens)")
    size = padded_length(len(prompt), 1, max_length)  # prompts of many lengths share a program
    generated = []
    for start in range(0, options.samples, BATCH_SIZE):
        padded = np.zeros((min(BATCH_SIZE, options.samples - start), size), np.int32)
        padded[:, : len(prompt)] = prompt
        generated += np.asarray(run.continue_prompts(
            run.params, padded, len(prompt), jax.random.fold_in(jax.random.key(options.seed), number), start,
            sampling=Sampling(options.temperature, options.top_k, options.top_p), tokens=options.tokens,
            capacity=min(size + options.tokens, max_length or 2**31))).tolist()
    return [[*itertools.takewhile(lambda token: token not in run.end_tokens, ids)] for ids in generated]


def generate(
    params: Tree, prompt: Array, size: Array, key: Array, start: Array | int = 0, *, model: Model,
    objective: Objective, sampling: Sampling, tokens: int, capacity: int, banned_token_ids: tuple[int, ...] = (),
) -> Array:
    """Generates `tokens` tokens after each prompt and returns them, i32[b, tokens].

    Args:
      params: {"encoder": ..., "objective": ...}.
      prompt: i32[b, n].
      size: i32[], the length of the prompts, at least 1; further tokens are padding, so that prompts of many lengths
        share one program.
      key: random key; the draws of an example depend on it and on the example's index alone.
      start: i32[], the index of the first example.
      model: a model with `state.decode`.
      objective: an objective with `Uses.next_token`.
      sampling: how tokens are sampled.
      tokens: the number of tokens to generate.
      capacity: of the cache; at least n, and at least `size` + `tokens`.
      banned_token_ids: ids that are never sampled, such as padding.
    """
    example_keys = jax.vmap(partial(jax.random.fold_in, key))(start + jnp.arange(prompt.shape[0]))

    def sample(hidden: Array, number: Array) -> Array:
        logits = objective.uses.next_token.logits(params, hidden)[:, 0].at[:, list(banned_token_ids)].set(-jnp.inf)
        return draw(example_keys, number, logits, sampling)

    def step(state: tuple[Array, Tree], number: Array) -> tuple[tuple[Array, Tree], Array]:
        token, cache = state
        hidden, cache = model.state.decode(params["encoder"], token[:, None], cache, **objective.uses.next_token.decode)
        next_token = sample(hidden, number)
        return (next_token, cache), next_token

    cache = model.state.cache(params["encoder"], prompt.shape[0], capacity)
    hidden, cache = model.state.decode(params["encoder"], prompt, cache, size, **objective.uses.next_token.decode)
    first = sample(jax.lax.dynamic_slice_in_dim(hidden, size - 1, 1, axis=1), jnp.int32(0))
    _, others = jax.lax.scan(step, (first, cache), jnp.arange(1, tokens))
    return jnp.concatenate([first[:, None], others.T], axis=1)
