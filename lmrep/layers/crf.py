"""A linear-chain conditional random field over tags (Lafferty et al., 2001), as in taggers (Lample et al., 2016).

A sequence of tags y_1 ... y_n with emissions e has the score

    start[y_1] + e_1[y_1] + sum_i (between[y_(i-1), y_i] + e_i[y_i]) + end[y_n]

and its probability is the softmax of that over all sequences. Positions without a tag, such as padding and further
tokens of a word, are skipped. Several chains in a row of a batch are independent.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.sharding import map_examples

FORBIDDEN = -1e30  # finite, so that gradients are too; exp of it is 0


class Allowed(NamedTuple):
    """Which tags may begin a chain (bool[l]), follow each other (bool[l, l], from and to) and end a chain (bool[l])."""

    start: np.ndarray
    between: np.ndarray
    end: np.ndarray


class Chains(NamedTuple):
    """Where chains are in sequences."""

    # i32[b, t], of the chain that a position belongs to; 0 for positions without a tag. Positions of a chain need not
    # be neighbours, but no other chain lies between them.
    number: Array
    # bool[b, t], whether the scores `start` apply to the position: it begins a chain, and not in the middle of a longer
    # text
    first: Array
    last: Array  # bool[b, t], whether the scores `end` apply


def specs(tags: int) -> Tree:
    """Returns the specs of the scores `start`, `between` and `end`, which begin at 0."""
    return {"start": ParamSpec((tags,), (None,), zeros), "between": ParamSpec((tags, tags), (None, None), zeros),
            "end": ParamSpec((tags,), (None,), zeros)}


def constrained(params: Tree, allowed: Allowed | None) -> Tree:
    """Returns the scores, with those that are not allowed `FORBIDDEN`; these get no gradient."""
    if allowed is None:
        return params
    return {name: jnp.where(mask, params[name], FORBIDDEN) for name, mask in allowed._asdict().items()}


def log_likelihood(scores: Tree, emissions: Array, tags: Array, chains: Chains) -> Array:
    """Returns the log-probability of `tags` i32[b, t], anything where there is none, as float32 [b, t]: what a position
    adds to the chain's, 0 without a tag. `scores` are as `constrained` gives them, `emissions` [b, t, l]."""
    inside = chains.number > 0
    tags = jnp.maximum(tags, 0)
    score = jnp.take_along_axis(emissions.astype(jnp.float32), tags[..., None], -1)[..., 0]
    before, continued = _before(tags, chains.number)
    between, start = scores["between"][before, tags], scores["start"][tags]
    score += jnp.where(continued, between, 0) + jnp.where(chains.first, start, 0)
    score += jnp.where(chains.last, scores["end"][tags], 0)
    return jnp.where(inside, score, 0) - log_partition(scores, emissions, chains)


def _before(tags: Array, number: Array) -> tuple[Array, Array]:
    """Returns for each position the last tag i32[b, t] before it, and whether that is of the same chain."""
    position = jnp.where(number > 0, jnp.arange(number.shape[1]), -1)
    last = jnp.pad(jax.lax.cummax(position, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    tag, chain = (jnp.take_along_axis(x, jnp.maximum(last, 0), 1) for x in (tags, number))
    return tag, (last >= 0) & (chain == number) & (number > 0)


def log_partition(scores: Tree, emissions: Array, chains: Chains) -> Array:
    """Returns the log of the sum over sequences of exp(score), float32 [b, t]: what a position adds in its chain."""
    def run(emissions: Array, number: Array, first: Array, last: Array, start: Array, between: Array, end: Array):
        def step(state: tuple[Array, Array], now: tuple[Array, ...]):
            alpha, chain = state  # log-probabilities of the tags up to here; they add to 1
            emission, number, first, last = now
            step_scores = jnp.where((number == chain)[:, None, None], between,
                                    jnp.where(first[:, None], start, 0)[:, None, :])
            new = jax.nn.logsumexp(alpha[:, :, None] + step_scores, axis=1) + emission
            new += jnp.where(last[:, None], end, 0)
            added = jax.nn.logsumexp(new, axis=-1)
            inside = number > 0
            state = jnp.where(inside[:, None], new - added[:, None], alpha), jnp.where(inside, number, chain)
            return state, jnp.where(inside, added, 0)

        # Before the first position: all probability on one state, whose scores to others are those of a new chain.
        alpha = jnp.full_like(emissions[:, 0], FORBIDDEN).at[:, 0].set(0)
        inputs = jax.tree.map(lambda x: x.swapaxes(0, 1), (emissions, number, first, last))
        return jax.lax.scan(step, (alpha, jnp.zeros_like(number[:, 0])), inputs)[1].T

    # On each device by itself: the gradients of the scores are summed over devices once, not at every position.
    by_position = ("batch", None)
    axes = ("batch", None, None), *[by_position] * 3, (None,), (None, None), (None,)
    return map_examples(lambda *arrays: (run(*arrays),), axes, [(1, 2)], emissions.astype(jnp.float32), chains.number,
                        chains.first, chains.last, scores["start"], scores["between"], scores["end"])[0]


def marginals(scores: Tree, emissions: Array, chains: Chains) -> Array:
    """Returns the probability of each tag at each position, given the full sequence, float32 [b, t, l]: the gradient of
    the logarithm of the partition function. 0 at positions without a tag."""
    return jax.grad(lambda e: log_partition(scores, e, chains).sum())(emissions.astype(jnp.float32))


def viterbi(scores: Tree, emissions: Array, chains: Chains) -> Array:
    """Returns the most probable tags i32[b, t] (Viterbi, 1967); of use at positions with a tag."""
    def forward(state: tuple[Array, Array], now: tuple[Array, ...]):
        best, chain = state
        emission, number, first, last = now
        step_scores = jnp.where((number == chain)[:, None, None], scores["between"],
                                jnp.where(first[:, None], scores["start"], 0)[:, None, :])
        paths = best[:, :, None] + step_scores
        new = paths.max(1) + emission + jnp.where(last[:, None], scores["end"], 0)
        inside = (number > 0)[:, None]
        same = jnp.arange(best.shape[-1])
        return ((jnp.where(inside, new - new.max(-1, keepdims=True), best), jnp.where(number > 0, number, chain)),
                jnp.where(inside, paths.argmax(1), same))

    def backward(tag: Array, came_from: Array):
        return jnp.take_along_axis(came_from, tag[:, None], 1)[:, 0], tag

    emissions = emissions.astype(jnp.float32)
    best = jnp.full_like(emissions[:, 0], FORBIDDEN).at[:, 0].set(0)
    inputs = jax.tree.map(lambda x: x.swapaxes(0, 1), (emissions, *chains))
    (best, _), came_from = jax.lax.scan(forward, (best, jnp.zeros_like(chains.number[:, 0])), inputs)
    return jax.lax.scan(backward, best.argmax(-1), came_from, reverse=True)[1].T.astype(jnp.int32)
