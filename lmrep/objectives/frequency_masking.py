"""Masks that prefer rare tokens, as those of XLM (Conneau and Lample, 2019) and DistilBERT: a position is drawn,
without replacement, with a probability proportional to max(count, 1)^-smoothing of its token; special tokens are never
drawn."""

from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array
from lmrep.core.vocabulary import Vocabulary
from lmrep.objectives.base import EvaluationKeys, Keys
from lmrep.objectives.masking import uniform


@dataclass(frozen=True)
class Config:
    """How tokens are chosen and what replaces them."""

    rate: float = setting(0.15, "fraction of the tokens that is predicted", above=0, at_most=1)
    draw: str = setting("sequence", "batch: ceil(rate * n) of the n tokens of a batch, as released; sequence: floor("
                        "rate * n + u) of those of each sequence, u uniform in [0, 1), so that the masks of an example "
                        "do not depend on the others, as always on validation", choices=("sequence", "batch"))
    smoothing: float = setting(0.7, "a token is chosen with a probability proportional to max(count, 1)^-smoothing; 0: "
                               "all tokens with the same one", at_least=0)
    mask: float = setting(0.8, "fraction of those replaced by [MASK]", at_least=0, at_most=1)
    keep: float = setting(0.1, "fraction of those left unchanged", at_least=0, at_most=1)
    random: float = setting(0.1, "fraction of those replaced by a random token, of the full vocabulary", at_least=0,
                            at_most=1)


def log_weights(c: Config, vocabulary: Vocabulary) -> np.ndarray:
    """float32 [v]: the logarithm of what each token's probability is proportional to; -inf for special tokens."""
    weights = -c.smoothing * np.log(np.maximum(vocabulary.counts, 1).astype(np.float64))
    weights[[*vocabulary.specials.values()]] = -np.inf
    return weights.astype(np.float32)


def mask_batch(
    keys: Keys, tokens: Array, segment_ids: Array, *, c: Config, vocabulary: Vocabulary
) -> tuple[Array, Array]:
    """The masks of a batch.

    Args:
      keys: each example's draws come from its own.
      tokens: i32[b, t].
      segment_ids: i32[b, t], 0 for padding.
      c: the config.
      vocabulary: its special ids and its counts.

    Returns:
      (inputs i32[b, t], chosen bool[b, t], the positions whose tokens are predicted).
    """
    b, t = tokens.shape
    bits = jax.vmap(lambda key: jax.random.bits(key, (4, t)))(keys.per_example)
    choice, action, fraction = uniform(bits[:, 0]), uniform(bits[:, 1]), uniform(bits[:, 3, 0])
    real = segment_ids > 0
    # The largest of log(w) + Gumbel noise are a sample without replacement, with probabilities proportional to w.
    gumbel = -jnp.log(-jnp.log(choice + 2.0**-25))
    scores = jnp.where(real, jnp.asarray(log_weights(c, vocabulary))[tokens] + gumbel, -jnp.inf)
    if c.draw == "batch" and not isinstance(keys, EvaluationKeys):
        rank = _rank(scores.reshape(1, b * t)).reshape(b, t)
        number = _ceil_fraction(c.rate, real.sum())
    else:
        rank = _rank(scores)
        number = jnp.floor(c.rate * real.sum(-1) + fraction).astype(jnp.int32)[:, None]
    chosen = (rank < number) & (scores > -jnp.inf)
    replacements = (bits[:, 2] % np.uint32(vocabulary.size)).astype(tokens.dtype)
    shown = jnp.where(action < c.mask, vocabulary.specials["mask"],
                      jnp.where(action < c.mask + c.random, replacements, tokens))
    return jnp.where(chosen, shown, tokens), chosen


def _rank(scores: Array) -> Array:
    """i32 like `scores` [n, k]: 0 for the largest of its line, 1 for the next."""
    return jnp.argsort(jnp.argsort(-scores, axis=-1), axis=-1).astype(jnp.int32)


def _ceil_fraction(rate: float, n: Array) -> Array:
    """ceil(rate * n) in whole numbers: float32 would round 0.15 * n."""
    exact = Fraction(rate).limit_denominator(1000)
    return (exact.numerator * n + exact.denominator - 1) // exact.denominator
