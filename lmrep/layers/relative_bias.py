"""A bias of attention logits for each head and distance, by bucket (Raffel et al., 2019, section 2.1)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import shard


class Buckets(NamedTuple):
    """Into which buckets distances fall."""

    number: int = 32  # of buckets
    max_distance: int = 128  # the distance from which on all are in the last bucket
    # whether keys on the right of a query have buckets too, the second half of them; otherwise they are in bucket 0,
    # and masked
    both_sides: bool = True

    def of(self, distances: np.ndarray) -> np.ndarray:
        """Returns the buckets of `distances`, the query's position less the key's: int64 of the same shape.

        The first half of a side's buckets have one distance each; the ranges of the others grow exponentially.
        """
        number = self.number // 2 if self.both_sides else self.number
        side = np.where(distances < 0, number, 0) if self.both_sides else 0
        n = np.abs(distances) if self.both_sides else np.maximum(distances, 0)
        exact = number // 2
        # 1e-9: the logarithm of a bucket's first distance may be rounded down.
        growth = np.log(np.maximum(n, exact) / exact) / np.log(self.max_distance / exact) * (number - exact) + 1e-9
        far = np.minimum(exact + growth.astype(np.int64), number - 1)
        return side + np.where(n < exact, n, far)


def specs(buckets: Buckets, heads: int, init: Initializer = normal()) -> Tree:
    """Returns the specs of a table float32 [number of buckets, h]."""
    return {"table": ParamSpec((buckets.number, heads), (None, "heads"), init)}


def apply(params: Tree, t: int, s: int, buckets: Buckets) -> Array:
    """Returns the bias float32 [h, t, s] of t queries and s keys that begin at the same position."""
    # By distance, and then by pair: row i of the pairs is the vector, i places further to the right. The gradient is a
    # sum of slices, where that of a lookup for each pair would be a scatter.
    distances = -np.concatenate([np.arange(s), np.arange(-t, 0)])  # the one at index s is not used
    by_distance = params["table"][buckets.of(distances)].T
    n = t + s
    pairs = jnp.tile(by_distance, (1, t))[:, : t * (n - 1)].reshape(-1, t, n - 1)[..., :s]
    return shard(pairs, "heads", "length", None)


def apply_at(params: Tree, start: Array, t: int, s: int, buckets: Buckets) -> Array:
    """Returns the bias float32 [h, t, s] of t queries from position `start` i32[] on, below s, and s keys from 0 on."""
    by_distance = params["table"][buckets.of(np.arange(-s, s))].T
    distances = start + jnp.arange(t)[:, None] - jnp.arange(s)
    return by_distance[:, distances + s]
