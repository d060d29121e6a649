"""Softmax cross-entropy over a sample of the vocabulary (Jean et al., 2015), as `tf.nn.sampled_softmax_loss` computes
it, which the language models of Jozefowicz et al. (2016) and ELMo (Peters et al., 2018) are trained with.

Negatives are drawn from a log-uniform distribution over ids, so these must be sorted by falling frequency. They are
distinct, and all positions of a batch share them. Where the target itself is drawn, it is no negative. From every logit
the logarithm of the word's expected count is subtracted. With the correct logits (log probabilities) the expected
gradient would then be zero, whatever the distribution of the negatives, if each word were drawn independently of the
others; it is close to zero, since the expected counts take the number of draws as given.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array
from lmrep.core.sharding import look_up, map_examples, shard, sum_shards
from lmrep.layers.lm_head import TABLE, merge_chunks, split_chunks

CHUNK_LOGITS = 2**21  # logits of a chunk of positions
ALL = np.iinfo(np.int32).max  # number of draws after which every word has been drawn


class Negatives(NamedTuple):
    """A sample of the vocabulary."""

    words: Array  # i32[k], distinct ids
    draws: Array  # i32[], how many draws with replacement it took to find them


def draw(key: Array, k: int, vocab: int) -> Negatives:
    """Draws until k distinct words are found. The probability of word i is log((i + 2) / (i + 1)) / log(vocab + 1).

    With k = vocab nothing is drawn: the sample is the vocabulary. The time grows with the number of draws, which is
    large where k is almost `vocab`.

    Raises ValueError if k is not in [1, vocab].
    """
    if not 1 <= k <= vocab:
        raise ValueError(f"expected between 1 and {vocab} negatives, the size of the vocabulary; got {k}")
    if k == vocab:
        return Negatives(jnp.arange(vocab, dtype=jnp.int32), jnp.int32(ALL))
    block = 4 * k  # usually enough

    def more(state: tuple) -> tuple:
        number, first, words, count, draws = state
        ids, accepted = _candidates(jax.random.fold_in(key, number), block, vocab)
        order = number * block + jnp.arange(block)
        first = first.at[ids].min(jnp.where(accepted, order, ALL))
        new = accepted & (first[ids] == order)
        rank = count + jnp.cumsum(new)
        words = words.at[jnp.where(new, rank - 1, k)].set(ids, mode="drop")
        draws += (accepted & (rank - new < k)).sum()
        return number + 1, first, words, rank[-1], draws

    start = jnp.int32(0), jnp.full(vocab, ALL, jnp.int32), jnp.zeros(k, jnp.int32), jnp.int32(0), jnp.int32(0)
    _, _, words, _, draws = jax.lax.while_loop(lambda state: state[3] < k, more, start)
    return Negatives(words, draws)


def _candidates(key: Array, n: int, vocab: int) -> tuple[Array, Array]:
    """Words i32[n], and bool[n], which of them to accept as draws.

    By rejection: i + 1 is uniform within an octave [2^j, 2^(j+1)), all octaves are equally likely, and it is accepted
    with a probability proportional to the word's. The exponential of a float32 would leave out rare words.
    """
    of_octave, of_word, of_acceptance = jax.random.split(key, 3)
    octave = jax.random.randint(of_octave, (n,), 0, int(vocab).bit_length())
    start = jnp.left_shift(1, octave)
    number = start + (jax.random.bits(of_word, (n,)) & (start - 1).astype(jnp.uint32)).astype(jnp.int32)
    probability = start * jnp.log1p(1 / number.astype(jnp.float32))
    accepted = (number <= vocab) & (jax.random.uniform(of_acceptance, (n,)) < probability)
    return jnp.minimum(number, vocab) - 1, accepted


def log_expected_counts(words: Array, draws: Array, k: int, vocab: int) -> Array:
    """Returns the logarithm, float32 like `words`, of the probability that a word is among `draws` draws.

    Where no word was drawn twice (k draws), it is k times the probability of one draw, as in TensorFlow.
    """
    p = jnp.log1p(1 / (words + 1).astype(jnp.float32)) / np.float32(np.log1p(vocab))
    return jnp.where(draws == k, jnp.log(k * p), jnp.log(-jnp.expm1(draws.astype(jnp.float32) * jnp.log1p(-p))))


def cross_entropy(
    table: Array, x: Array, targets: Array, weights: Array, negatives: Negatives, bias: Array | None = None
) -> tuple[Array, Array]:
    """Returns the weighted sum of the sampled cross-entropies of `targets` i32[b, t] given x [b, t, e], and nll float32
    [b, t] without a gradient; `weights` float32 [b, t] are 0 where nothing is predicted. The table [v, e] has the
    logical axes `vocab` and `embed`.

    Only the rows of the targets and of the negatives are read from the table, and its gradient is a single scatter. No
    array is larger than the gradient of the table, the rows, or a chunk of the logits of the negatives.
    """
    words, draws = negatives
    (b, t), k, v = targets.shape, len(words), len(table)
    # The negatives' ids are dealt out to the examples, so that one look-up, which is sharded over them, finds all rows.
    extra = -(-k // b)
    words = jnp.pad(words, (0, b * extra - k), constant_values=-1)
    ids = jnp.concatenate([targets, words.clip(0).reshape(b, extra)], 1)
    rows = look_up(table, ids)
    offsets = -log_expected_counts(ids, draws, k, v)
    if bias is not None:
        offsets += jnp.take(bias, ids)
    true_rows, true_offsets = rows[:, :t].astype(x.dtype), offsets[:, :t]
    true = jnp.einsum("btd,btd->bt", x, true_rows, preferred_element_type=jnp.float32) + true_offsets
    vectors = shard(rows[:, t:].reshape(b * extra, -1), *TABLE)
    vector_offsets = jnp.where(words < 0, -jnp.inf, offsets[:, t:].reshape(-1))
    axes = ("batch", "length")

    def run(*shards: Array) -> tuple[Array, Array]:
        total, nll = _sampled(*shards)
        return sum_shards(total, axes, (b, t)), nll

    total, nll = map_examples(run, (TABLE, ("vocab",), (*axes, None), axes, axes, axes, ("vocab",)), ((3, 0), (3, 2)),
                              vectors, vector_offsets, x, true, weights, targets, words)
    return total, jax.lax.stop_gradient(nll)


def _exponentials(
    vectors: Array, offsets: Array, x: Array, true: Array, targets: Array, words: Array
) -> tuple[Array, Array, Array]:
    """Returns for a chunk (exp(logits - max) of the negatives [b, t, k], of the targets [b, t], nll [b, t])."""
    y = jnp.einsum("btd,kd->btk", x, vectors.astype(x.dtype), preferred_element_type=jnp.float32) + offsets
    y = shard(jnp.where(targets[..., None] == words, -jnp.inf, y), "batch", "length", "vocab")
    largest = jnp.maximum(y.max(-1), true)
    exponentials, of_target = jnp.exp(y - largest[..., None]), jnp.exp(true - largest)
    return exponentials, of_target, jnp.log(exponentials.sum(-1) + of_target) + largest - true


def _chunks(x: Array, k: int, *arrays: Array) -> tuple[Array, ...]:
    b, t = x.shape[:2]
    number = max(1, min(t, -(-b * t * k // CHUNK_LOGITS)))
    return tuple(split_chunks(array, number) for array in (x, *arrays))


@jax.custom_vjp
def _sampled(vectors: Array, offsets: Array, x: Array, true: Array, weights: Array, targets: Array, words: Array):
    def one_chunk(_, chunk):
        x, true, targets = chunk
        return None, _exponentials(vectors, offsets, x, true, targets, words)[2]

    nll = jax.lax.scan(one_chunk, None, _chunks(x, len(words), true, targets))[1]
    nll = merge_chunks(nll, x.shape[1])
    return (nll * weights).sum(), nll


def _forward(vectors: Array, offsets: Array, x: Array, true: Array, weights: Array, targets: Array, words: Array):
    # The result of `_sampled`, and the gradients for a cotangent of 1, so that no logits are kept or computed twice.
    def one_chunk(sums, chunk):
        x, true, weights, targets = chunk
        exponentials, of_target, nll = _exponentials(vectors, offsets, x, true, targets, words)
        scale = weights / (exponentials.sum(-1) + of_target)
        gradient = exponentials * scale[..., None]
        low = gradient.astype(x.dtype)
        dx = jnp.einsum("btk,kd->btd", low, vectors.astype(x.dtype))
        dvectors = jnp.einsum("btk,btd->kd", low, x, preferred_element_type=jnp.float32)
        sums = sums[0] + dvectors, sums[1] + gradient.sum((0, 1))
        return sums, (nll, dx, of_target * scale - weights)

    zeros = shard(jnp.zeros(vectors.shape, jnp.float32), "vocab", None), jnp.zeros(offsets.shape, jnp.float32)
    sums, chunks = jax.lax.scan(one_chunk, zeros, _chunks(x, len(words), true, weights, targets))
    nll, dx, dtrue = (merge_chunks(parts, x.shape[1]) for parts in chunks)
    return ((nll * weights).sum(), nll), (sums[0].astype(vectors.dtype), sums[1], dx.astype(x.dtype), dtrue, nll)


def _backward(residuals: tuple, cotangents: tuple[Array, Array]):
    g = cotangents[0]
    return *((g * gradient).astype(gradient.dtype) for gradient in residuals), None, None


_sampled.defvjp(_forward, _backward)
