"""The contract between an objective and the trainer.

The trainer knows nothing of masks, heads or labels. It hands the whole batch to `corrupt` once, with a random
key for each row, and then sums `loss` over microbatches, devices and hosts. Without dropout that sum is exact:
all that belongs to the question is drawn from the row's own key, and every weight in a corrupted batch is
already divided by the whole batch's total.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from lmrep.core.params import Array, Tree

Batch = dict[str, Array]  # every field leads with the batch axis
Metrics = dict[str, tuple[Array, Array]]  # name -> (sum, count), so that any grouping adds up


class Keys(NamedTuple):
    """Randomness of one batch's questions."""

    rows: Array  # key[b]: what belongs to a row is drawn from its own
    step: Array  # key[]: for draws that a batch shares, as the negatives of a sampled softmax


class Carry(NamedTuple):
    """What an objective takes from one step to the next."""

    rows: Tree = ()  # leaves lead with the batch axis: recurrent states, memories
    shared: Tree = ()  # leaves that have none: running statistics; threaded through microbatches in their order


class Objective(NamedTuple):
    """What to ask of an encoder, as pure functions closed over their config.

    `specs` is {"encoder": ..., "objective": ...}. `frozen` holds parameters that get no gradient and no optimizer
    state (a teacher, a language model under a tagger); `loss`, `predict` and `penalty` find them under
    params["frozen"].
    """

    name: str
    specs: Tree
    corrupt: Callable[[Keys, Batch], Batch]  # adds inputs, targets, weights
    loss: Callable[[Tree, Batch, Array | None, Carry], tuple[Array, tuple[Metrics, Carry]]]
    # (params, batch, key, carry) -> (a plain sum over rows, (metrics, carry)); the key is for dropout, None for none
    frozen: Tree = {}  # noqa: RUF012
    carry: Callable[[int], Carry] = lambda rows: Carry()  # rows -> the state that the first step starts from
    penalty: Callable[[Tree], Array] | None = None  # params -> a term added once a step
    predict: Callable[[Tree, Batch], dict[str, Array]] | None = None
    # (params, what is asked, without targets) -> rows of answers: `words` and their `probabilities` [b, m, k] at
    # batch["predicted"] i32[b, m]; where that is not asked, `replaced` [b, t], the probability that a token was
    follow: Callable[[Tree, Array], Array] | None = None  # hidden [b, t, d] -> scores [b, t, v] of what is next
    score: Callable[[dict[str, Any]], dict[str, float]] | None = None  # all rows -> figures that do not add
    describe: Callable[[Batch, Any], list[str]] | None = None  # (corrupted batch, tokenizer) -> a text for each row
    causal: bool = False  # whether a position sees those before it alone
    static: bool = False  # whether a question depends on the example's number alone (BERT's static masks)


def share(asked: Array) -> Array:
    """bool or float [...] -> float32 [...]: divided by the whole array's total, so that the weights add to 1.

    All zero where nothing is asked.
    """
    asked = asked.astype(jnp.float32)
    return asked / jnp.maximum(asked.sum(), 1.0)
