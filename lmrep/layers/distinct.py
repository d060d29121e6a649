"""Functions of words, computed once for each distinct word of a batch.

A text of n words has far fewer distinct words. The device finds them: it sorts words by a hash, and a word that differs
from the one before it starts a new group. Words with equal hashes may be computed twice, but never get each other's
result.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Tree
from lmrep.layers.gradient import with_gradient
from lmrep.layers.loops import repeat

CHUNK = 256  # words that are computed at once
SHORT = (12, 20)  # characters of short words, with their marks; such words are computed without the rest
HASH_BITS = 25
FACTORS = np.random.default_rng(0).integers(0, 2**32, 1 << 10, np.uint32) | 1  # of the hash, for each position


class Groups(NamedTuple):
    """The distinct words of a batch, shorter ones first."""

    words: Array  # i32[n, c], distinct ones, then others, whose results are not used
    count: Array  # i32[], the number of distinct words
    of_word: Array  # i32[n], the index in `words` of each word of the batch
    lengths: Array  # i32[n], of `words`: the characters up to the last that differs from the one at c - 1


def find(words: Array) -> Groups:
    """Finds the distinct rows of words i32[n, c]."""
    n, c = words.shape
    lengths = jnp.where(words != words[:, -1:], jnp.arange(1, c + 1), 0).max(1).astype(jnp.int32)
    hashes = (words.astype(jnp.uint32) * FACTORS[:c]).sum(1, dtype=jnp.uint32) >> (32 - HASH_BITS)
    _, order = jax.lax.sort((lengths.astype(jnp.uint32) << HASH_BITS | hashes, jnp.arange(n)), num_keys=1)
    in_order = words[order]
    new = jnp.concatenate([jnp.ones(1, bool), (in_order[1:] != in_order[:-1]).any(1)])
    group = jnp.cumsum(new) - 1
    first = order[jnp.nonzero(new, size=n, fill_value=0)[0]]
    return Groups(words[first], group[-1] + 1, jnp.zeros(n, group.dtype).at[order].set(group), lengths[first])


def apply(f: Callable[[Tree, Array], Array], params: Tree, words: Array, reach: int) -> Array:
    """Computes f(params, words) for words i32[n, c] -> [n, d], by one call for each CHUNK of distinct words.

    `f` gives the result of each word by itself, (params, i32[k, m]) -> [k, d]. Cutting characters at the end must not
    change it, as long as `reach` of those remain that are all equal from there on. The backward pass computes f again
    for each chunk; none of its intermediate values are kept.
    """
    sizes = tuple(sorted({words.shape[1], *(short + reach for short in SHORT if short + reach < words.shape[1])}))
    return _apply(f, min(CHUNK, len(words)), reach, sizes, params, words)


def _chunks(groups: Groups, size: int, sizes: Sequence[int], reach: int) -> tuple[Callable, Array]:
    """Returns (i -> (words of chunk i, index in `sizes` of the number of characters it needs), number of chunks)."""
    pad = -len(groups.words) % size
    words = jnp.pad(groups.words, ((0, pad), (0, 0)), mode="edge")
    lengths = jnp.where(jnp.arange(len(groups.lengths)) < groups.count, groups.lengths, 0)

    def chunk(i: Array) -> tuple[Array, Array]:
        longest = jax.lax.dynamic_slice_in_dim(jnp.pad(lengths, (0, pad)), i * size, size).max()
        return (jax.lax.dynamic_slice_in_dim(words, i * size, size),
                (longest + reach > jnp.asarray(sizes[:-1], jnp.int32)).sum())

    return chunk, -(-groups.count // size)


def _forward(f, size, reach, sizes, params, words):
    groups = find(words)
    chunk, number = _chunks(groups, size, sizes, reach)
    branches = [lambda x, m=m: f(params, x[:, :m]) for m in sizes]

    def step(i: Array, results: Array) -> Array:
        x, branch = chunk(i)
        return jax.lax.dynamic_update_slice_in_dim(results, jax.lax.switch(branch, branches, x), i * size, 0)

    most, result = -(-len(words) // size), jax.eval_shape(f, params, words)
    results = repeat(number, most, step, jnp.zeros((most * size, result.shape[1]), result.dtype))
    return results[groups.of_word], (params, groups)


def _backward(f, size, reach, sizes, residuals, cotangent):
    params, groups = residuals
    chunk, number = _chunks(groups, size, sizes, reach)
    most = -(-len(groups.words) // size)
    summed = jnp.zeros((most * size, cotangent.shape[1])).at[groups.of_word].add(cotangent.astype(jnp.float32))
    summed = summed.astype(cotangent.dtype)

    def gradients(x: Array, g: Array, m: int) -> Tree:
        return jax.vjp(lambda p: f(p, x[:, :m]), params)[1](g)[0]

    branches = [partial(gradients, m=m) for m in sizes]

    def step(i: Array, total: Tree) -> Tree:
        x, branch = chunk(i)
        g = jax.lax.dynamic_slice_in_dim(summed, i * size, size)
        return jax.tree.map(jnp.add, total, jax.lax.switch(branch, branches, x, g))

    return repeat(number, most, step, jax.tree.map(jnp.zeros_like, params)), None


_apply = with_gradient(_forward, _backward, (0, 1, 2, 3))
