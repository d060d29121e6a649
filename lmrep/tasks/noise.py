"""Noise on the token vectors that a task reads in training."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.layers import dropout
from lmrep.models.base import Model, with_vectors


def with_word_dropout(model: Model, rate: float) -> Model:
    """Returns `model`, which in training reads zeros in place of the vectors of tokens, with probability `rate` each.
    The others are not scaled (Iyyer et al., 2015). Raises UserError if the rate is not 0, and the network does not
    allow it."""
    if not rate:
        return model

    def dropped(key: Array | None) -> Callable[[Array], Array] | None:
        if key is None:
            return None
        key = jax.random.fold_in(key, 2)
        return lambda x: jnp.where(dropout.apply(key, jnp.ones((*x.shape[:-1], 1)), rate) > 0, x, 0)

    return with_vectors(model, dropped, "config.objective.word_dropout")
