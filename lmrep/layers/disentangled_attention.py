"""Disentangled attention: content and relative positions attend to each other by separate products (He et al., 2021,
DeBERTa, section 3.1), with distances in buckets and the projections of content for positions too, as from version 2 on
(He et al., 2023, DeBERTaV3).

The logit of query t and key s, whose distance t - s is in bucket r, is

    q_t . k_s + q_t . K R_r + k_s . Q R_r

over the root of (1 + n) k, with n terms of positions, two here, and heads of width k. R_r is the embedding of the
bucket, and Q and K are the projections of queries and keys, with their biases.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import linear, norm
from lmrep.layers.attention import IN, Attend, KVCache, dense
from lmrep.layers.relative_attention import shift

# name of the terms of positions -> whether content attends to positions (c2p), and positions attend to content (p2c)
TERMS = {"both": (True, True), "c2p": (True, False), "p2c": (False, True)}


class Buckets(NamedTuple):
    """Into which buckets distances fall, about as many to each side."""

    number: int = 256  # of buckets of a side; 0: one for each distance up to `max_distance`
    max_distance: int = 512  # farther positions are in the last bucket

    @property
    def rows(self) -> int:
        """The number of buckets of both sides."""
        return 2 * (self.number or self.max_distance)

    def of(self, distances: np.ndarray) -> np.ndarray:
        """Returns the buckets of `distances`, the query's position less the key's: int64 of the same shape.

        The first half of a side's buckets have one distance each; the ranges of the others grow exponentially.
        """
        if self.number:
            exact = self.number // 2
            far = np.maximum(np.abs(distances), exact)
            growth = np.log(far / exact) / np.log((self.max_distance - 1) / exact) * (exact - 1)
            buckets = np.sign(distances) * (exact + np.ceil(growth))
            distances = np.where(np.abs(distances) <= exact, distances, buckets).astype(np.int64)
        return np.clip(distances + self.rows // 2, 0, self.rows - 1)


def specs(buckets: Buckets, d: int, init: Initializer = normal()) -> Tree:
    """Returns the embeddings `table` [rows, d] of the buckets, which all layers share, and their layer norm."""
    return {"table": ParamSpec((buckets.rows, d), (None, None), init), "norm": norm.specs(d)}


def embeddings(params: Tree, eps: float, dtype: str = "float32") -> Array:
    """Returns the normalized embeddings [rows, d] of the buckets."""
    return norm.apply(params["norm"], params["table"], eps).astype(dtype)


def attend(
    params: Tree, relative: Array, mask: Array, heads: int, buckets: Buckets, terms: str = "both"
) -> Attend:
    """Makes attention that computes and keeps all probabilities at once.

    Args:
      params: the projections `query` and `key` of the layer.
      relative: [rows, d], the embeddings of the buckets.
      mask: bool[b, t, t], as from `AttentionMask.to_bool`.
      heads: h.
      terms: a name in `TERMS`.
    """
    length = mask.shape[-1]
    falling = np.arange(length - 1, -length - 1, -1)  # distances of the columns that `shift` reads

    def project(name: str, distances: np.ndarray) -> Array:
        """Returns [2 t, h, k], by distance. The rows of buckets are projected before they are repeated."""
        x = linear.apply(params[name], relative, IN).reshape(len(relative), heads, -1)
        return shard(x[buckets.of(distances)], None, "heads", None)

    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        to_positions, from_positions = TERMS[terms]
        scale = ((1 + to_positions + from_positions) * query.shape[-1]) ** -0.5
        query, bias = query * scale, 0
        if to_positions:
            by_distance = jnp.einsum("bthk,nhk->bhtn", query, project("key", falling))
            bias += shift(by_distance, None if at is None else length - 1 - at, length)
        if from_positions:
            by_distance = jnp.einsum("bshk,nhk->bhsn", kv.keys, scale * project("query", -falling))
            by_query = shift(by_distance, None, length).swapaxes(2, 3)
            bias += by_query if at is None else jnp.take_along_axis(by_query, at[:, None, :, None], axis=2)
        return dense(mask, bias, scaled=False)(query, kv, at=at, rate=rate, key=key)

    return run
