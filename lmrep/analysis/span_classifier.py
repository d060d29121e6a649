"""The classifier of edge probes, which predicts labels of one or two spans of tokens from frozen vectors (Tenney et
al., 2019), and the description length of labels under it (Voita and Titov, 2020).

The vectors of a layer, or a learned weighted sum of all layers, are projected to 256 dimensions. A span is the sum of
its tokens' projections with the weights of self-attention. Both have other parameters for the first span than for the
second. A hidden layer of 256 units, with tanh, layer norm and dropout of 0.3 as in the authors' code, leads to a logit
for each label. Unlike there, Adam's rate falls linearly, and the last layer begins with zeros.
"""

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.data.formats.base import ranges
from lmrep.inference.encode import padded_length
from lmrep.layers import dropout, linear, norm, scalar_mix

WIDTH, DROPOUT, EPS = 256, 0.3, 1e-5
BATCH, EPOCHS, STEPS, RATE = 128, 10, 500, 1e-3  # of training: targets in a batch, at least so many steps; Adam
PORTIONS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25, 50, 100)  # percent of the targets, of the online code
FIRST_CHECK = 8  # the step of the first of the parameters that are compared; each later one has twice as many
COMPARED = 2000  # held-out targets that parameters are compared by, at most

ADAM = optax.scale_by_adam()


class Targets(NamedTuple):
    """Spans of tokens with their labels."""

    x: Any  # float32 [k, m, d], the vectors of m tokens in k layers
    spans: np.ndarray  # int64 [n, s, 2], the first token of each of s spans of a target, and the one after its last
    labels: np.ndarray  # bool [n, c], the labels of each target


class Batch(NamedTuple):
    """Targets with padding: the tokens of all first spans follow each other, and so do those of all second spans."""

    token: np.ndarray  # int32 [s, t], indices of tokens
    target: np.ndarray  # int32 [s, t], the target of each token, 0 to b - 1; b: padding
    labels: np.ndarray  # float32 [b, c]
    weights: np.ndarray  # float32 [b], which sum to 1; 0: padding


def batch_of(data: Targets, chosen: np.ndarray, size: int = BATCH) -> Batch:
    """Makes a batch of `size` targets of those that `chosen` int64 [n] numbers, and padding."""
    sizes = np.diff(data.spans[chosen])[..., 0].T
    length = padded_length(int(sizes.sum(1).max()), 2 * size)
    token, target = np.zeros((2, *sizes.shape[:1], length), np.int32)
    for i, counts in enumerate(sizes):
        total = counts.sum()
        token[i, :total] = np.repeat(data.spans[chosen, i, 0], counts) + ranges(counts)
        target[i, :total], target[i, total:] = np.repeat(np.arange(len(chosen)), counts), size
    rest = size - len(chosen)
    labels = np.pad(data.labels[chosen].astype(np.float32), ((0, rest), (0, 0)))
    return Batch(token, target, labels, np.pad(np.full(len(chosen), 1 / len(chosen), np.float32), (0, rest)))


# The network


def specs(layers: int, d: int, spans: int, classes: int) -> Tree:
    """Returns the specs of a classifier of vectors [d] in `layers` layers, of which it learns a weighted sum."""
    dense = partial(linear.specs, axes=(None, None), init=P.glorot_uniform)
    return {
        "mix": scalar_mix.specs(layers),
        **{f"span{i}": {"project": dense(d, WIDTH), "attention": dense(WIDTH, 1)} for i in range(spans)},
        "hidden": dense(spans * WIDTH, WIDTH), "norm": norm.specs(WIDTH),
        "output": dense(WIDTH, classes, init=P.zeros)}


def logits(params: Tree, x: Array, batch: Batch, key: Array | None = None) -> Array:
    """Computes the logits float32 [b, c] of a batch, from the vectors x [k, m, d]. `key` is of dropout."""
    pooled = []
    for i, (token, target) in enumerate(zip(batch.token, batch.target, strict=True)):
        part = params[f"span{i}"]
        projected = linear.apply(part["project"], scalar_mix.apply(params["mix"], [*x[:, token]]))
        pooled.append(pool(part["attention"], projected, target, len(batch.labels)))
    hidden = jnp.tanh(linear.apply(params["hidden"], jnp.concatenate(pooled, -1)))
    hidden = dropout.apply(key, norm.apply(params["norm"], hidden, EPS), DROPOUT)
    return linear.apply(params["output"], hidden)


def pool(params: Tree, x: Array, target: Array, count: int) -> Array:
    """Sums the vectors x [t, d] of each of `count` targets, weighted by a softmax of learned scores: [count, d]. Tokens
    of the target `count` are padding; a target without tokens is 0."""
    scores = linear.apply(params, x)[:, 0]
    highest = jax.ops.segment_max(jax.lax.stop_gradient(scores), target, count)
    weights = jnp.exp(jnp.where(target < count, scores - highest[target], -jnp.inf))
    total = jax.ops.segment_sum(weights, target, count)[:, None]
    return jax.ops.segment_sum(weights[:, None] * x, target, count) / jnp.maximum(total, 1e-9)


def losses(y: Array, labels: Array, softmax: bool) -> Array:
    """Computes the loss of each target [b] in nats: with `softmax`, the cross-entropy of one label, otherwise the sum
    of the binary cross-entropies of all labels."""
    if softmax:
        return -(labels * jax.nn.log_softmax(y)).sum(-1)
    return optax.sigmoid_binary_cross_entropy(y, labels).sum(-1)


# Training


@partial(jax.jit, static_argnames="softmax")
def _step(
    params: Tree, moments: Any, x: Array, batch: Batch, rate: float, key: Array, number: int, softmax: bool
) -> tuple[Tree, Any]:
    key = jax.random.fold_in(key, number)

    def loss(params: Tree) -> Array:
        return (losses(logits(params, x, batch, key), batch.labels, softmax) * batch.weights).sum()

    updates, moments = ADAM.update(jax.grad(loss)(params), moments)
    return jax.tree.map(lambda value, update: value - rate * update, params, updates), moments


_logits = jax.jit(logits)


def fit(
    data: Targets, chosen: np.ndarray, seed: int = 0, softmax: bool = False, held_out: Targets | None = None
) -> Tree:
    """Trains a classifier on the targets that `chosen` int64 [n] numbers.

    With `held_out`, returns the parameters with the lowest loss on its targets: those at the start, after 8, 16, 32,
    ... steps, or at the end."""
    key, draw = jax.random.key(seed), np.random.default_rng(seed)
    params = P.init(specs(len(data.x), data.x.shape[-1], data.spans.shape[1], data.labels.shape[1]), key)
    moments = ADAM.init(params)
    per_epoch = -(-len(chosen) // BATCH)
    steps = max(EPOCHS * per_epoch, STEPS)
    some = held_out and np.linspace(0, len(held_out.labels) - 1, min(COMPARED, len(held_out.labels))).astype(int)
    best, check = (_loss(params, held_out, some, softmax), params) if held_out else (0.0, params), FIRST_CHECK
    for number in range(1, steps + 1):
        if (at := (number - 1) % per_epoch) == 0:
            order = draw.permutation(chosen)
        batch = batch_of(data, order[at * BATCH : (at + 1) * BATCH])
        rate = RATE * (1 - (number - 1) / steps)
        params, moments = _step(params, moments, data.x, batch, rate, key, number, softmax)
        if held_out and number in (check, steps):
            check *= 2
            best = min(best, (_loss(params, held_out, some, softmax), params), key=lambda item: item[0])
    return best[1] if held_out else params


def predict(params: Tree, data: Targets, chosen: np.ndarray) -> np.ndarray:
    """Computes the logits float32 [n, c] of the targets that `chosen` int64 [n] numbers."""
    size = 8 * BATCH
    return np.concatenate([np.asarray(_logits(params, data.x, batch_of(data, chosen[i : i + size], size)))
                           [: len(chosen) - i] for i in range(0, len(chosen), size)])


def _loss(params: Tree, data: Targets, chosen: np.ndarray, softmax: bool) -> float:
    return float(losses(predict(params, data, chosen), jnp.asarray(data.labels[chosen]), softmax).sum())


# Description length


def portions(count: int) -> list[int]:
    """Returns the ends of the blocks of the online code of `count` targets, `PORTIONS` of them rounded up; blocks
    without targets are left out."""
    return np.unique(np.ceil(count * np.array(PORTIONS) / 100).astype(int)).tolist()


def code_length(data: Targets, held_out: Targets, seed: int = 0, trained: Any = lambda: None) -> float:
    """Computes the online (prequential) code of the labels of targets with one label each, in bits (Voita and Titov,
    2020, section 2.2.2): the first block of targets, in random order, is sent with log2(c) bits a label, and each later
    block with a classifier of c labels that is trained on all targets before it, by softmax. As in the authors' code,
    held-out targets choose when training ends.

    `trained` is called after each classifier, of which there are `len(portions(n)) - 1`.
    """
    order = np.random.default_rng(seed).permutation(len(data.labels))
    ends = portions(len(order))
    bits = ends[0] * math.log2(data.labels.shape[1])
    for first, last in itertools.pairwise(ends):
        params = fit(data, order[:first], seed, True, held_out)
        bits += _loss(params, data, order[first:last], True) / math.log(2)
        trained()
    return bits
