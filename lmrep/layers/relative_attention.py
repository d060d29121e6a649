"""Multi-head attention with relative positions (Dai et al., 2019, section 3.3) and relative segments (Yang et al.,
2019, section 2.5).

The logit of query i and key j, whose distance is p = i - j, is

    (q_i + u) . k_j + (q_i + v) . W R_p + (q_i + w) . s_ij

over the root of the heads' width. R_p is a sinusoid and W the kernel `position`; u, v and w are the biases `content`,
`position` and `segment`; s_ij is one of two vectors, for equal or for different token types.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import gather, shard
from lmrep.layers import dropout, linear
from lmrep.layers.attention import HEADS, IN, MASKED_LOGIT, OUT
from lmrep.layers.gradient import with_gradient

EQUAL, DIFFERENT = 0, 1  # rows of `segment`


def specs(d: int, heads: int, init: Initializer = normal(), *, segments: bool = False) -> Tree:
    """Kernels of queries, keys, values, positions and the output, without bias, and with `segments` the vectors
    `segment` [2, h, k] of equal and of different token types."""
    k = d // heads
    kernel = {"kernel": ParamSpec((d, d), IN, init, (1, k))}
    tree = {name: kernel for name in ("query", "key", "value", "position")}
    tree["output"] = {"kernel": ParamSpec((d, d), OUT, init, (k, 1))}
    return tree | ({"segment": ParamSpec((2, heads, k), (None, "heads", None), init)} if segments else {})


def bias_specs(d: int, heads: int, init: Initializer = normal(), *, segments: bool = False) -> Tree:
    """Returns the specs of the biases of queries, [h, k] each."""
    names = ("content", "position", "segment") if segments else ("content", "position")
    return {f"{name}_bias": ParamSpec((heads, d // heads), ("heads", None), init) for name in names}


def sinusoids(distances: Array | np.ndarray, d: int) -> Array:
    """Returns float32 [n, d]: sines of distances [n] in d / 2 frequencies from 1 to 1 / 10000, then the cosines."""
    frequencies = 10000.0 ** -(np.arange(0, d, 2) / d)
    angles = distances[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1).astype(jnp.float32)


class Keys(NamedTuple):
    """What queries attend to in one layer.

    Attributes:
      keys, values: [b, s, h, k].
      positions: W R_p, [n, h, k] or [b, n, h, k], by falling distance, from the last query to the first key on.
    """

    keys: Array
    values: Array
    positions: Array


class Mask(NamedTuple):
    """Masks and token types of pairs of queries and keys, the same for all layers."""

    visible: Array  # bool[b, t, s], True where query t may attend to key s
    equal: Array | None  # bool[b, t, s], True where both have the same token type; None where all have
    at: Array | None  # i32[b, t], the positions of the queries among the last keys; None where they are these keys
    length: int  # the number of these last keys


def keys_and_values(params: Tree, x: Array, heads: int) -> tuple[Array, Array]:
    """Returns the keys and values of x [b, s, d], [b, s, h, k] each."""
    keys, values = (gather(_heads(params[name], x, heads), HEADS, "length") for name in ("key", "value"))
    return keys, values


def position_keys(params: Tree, relative: Array, heads: int) -> Array:
    """Returns W R, [n, h, k] or [b, n, h, k], of R = `relative` [n, d] or [b, n, d]."""
    positions = linear.product(relative, params["position"]["kernel"], IN)
    positions = positions.reshape(*positions.shape[:-1], heads, -1)
    return shard(positions, *("batch",) * (relative.ndim - 2), None, "heads", None)


def apply(
    params: Tree, biases: Mapping[str, Array], x: Array, keys: Keys, mask: Mask, heads: int, *, rate: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Computes attention of the queries x [b, t, d] to `keys` of the same parameters, with dropout on the
    probabilities: ([b, t, d], probabilities [b, h, t, s] before dropout). A query that attends to none gives 0."""
    query = _heads(params["query"], x, heads)
    scale = query.shape[-1] ** -0.5
    content, position = ((query + biases[name].astype(x.dtype)) * scale for name in ("content_bias", "position_bias"))
    segment = None
    if mask.equal is not None:
        # Softmax ignores what all logits of a query have in common: the difference of both vectors is enough.
        by_segment = (query + biases["segment_bias"].astype(x.dtype)) * scale
        difference = params["segment"][EQUAL] - params["segment"][DIFFERENT]
        segment = jnp.einsum("bthk,hk->bth", by_segment, difference.astype(x.dtype))
    start = None if mask.at is None else mask.length - 1 - mask.at
    output, probabilities = _attend(content, position, segment, keys.keys, keys.values, keys.positions, mask.visible,
                                    mask.equal, start, key, rate)
    return linear.product(output.reshape(*output.shape[:2], -1), params["output"]["kernel"], OUT), probabilities


def _heads(params: Tree, x: Array, heads: int) -> Array:
    return shard(linear.product(x, params["kernel"], IN).reshape(*x.shape[:2], heads, -1), *HEADS)


# Relative shift


def shift(x: Array, start: Array | None, s: int) -> Array:
    """Shifts x [b, h, t, n] by distance -> [b, h, t, s] by key: the s columns of row t from `start` i32[b, t] on, by
    default from the number of rows after it on."""
    b, h, t, n = x.shape
    if start is None:
        flat = x.reshape(b, h, t * n)[..., t - 1 : t - 1 + t * (n - 1)]
        return flat.reshape(b, h, t, n - 1)[..., :s]
    return _slices(x, start, s)


def unshift(x: Array, start: Array | None, n: int, length: int) -> Array:
    """Computes the transpose of `shift`: x [b, h, t, s] -> [b, h, t, n]. `start` is below `length`."""
    b, h, t, s = x.shape
    if start is None:
        flat = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, n - 1 - s))).reshape(b, h, t * (n - 1))
        return jnp.pad(flat, ((0, 0), (0, 0), (t - 1, 1))).reshape(b, h, t, n)
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (length - 1, n)))
    return _slices(padded, length - 1 - start, n)


def _slices(x: Array, start: Array, size: int) -> Array:
    """Slices x [b, h, t, n] -> [b, h, t, size]: columns from `start` i32[b, t] on."""
    columns = lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)  # noqa: E731
    return jax.vmap(jax.vmap(columns, in_axes=(1, 0), out_axes=1))(x, start)


def _forward(
    content: Array, position: Array, segment: Array | None, keys: Array, values: Array, positions: Array,
    visible: Array, equal: Array | None, start: Array | None, key: Array | None, rate: float,
) -> tuple[tuple[Array, Array], tuple]:
    # As `attention._forward`: positions stay before heads in memory, and one [b, h, t, s] array is kept.
    s, needed = keys.shape[1], 0
    by_distance = jnp.einsum("bthk,bnhk->bhtn" if positions.ndim == 4 else "bthk,nhk->bhtn", position, positions)
    if start is not None:  # rows read up to s columns from there on
        needed = max(0, s + keys.shape[1] - by_distance.shape[-1])
        by_distance = jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (0, needed)))
    logits = jnp.einsum("bthk,bshk->bhts", content, keys) + shift(by_distance, start, s)
    if segment is not None:
        logits += jnp.where(equal[:, None], segment.transpose(0, 2, 1)[..., None], 0)
    logits = jnp.where(visible[:, None], logits.astype(jnp.float32), MASKED_LOGIT)
    # A query that attends to nothing is given nothing, and not the mean of what it must not read.
    exponentials = jnp.where(visible[:, None], jnp.exp(logits - logits.max(-1, keepdims=True)), 0)
    weights = (exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)).astype(content.dtype)
    output = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, weights, rate), values)
    return (output, weights), (content, position, segment, keys, values, positions, equal, start, key, weights)


def _backward(rate: float, residuals: tuple, cotangents: tuple[Array, Array]) -> tuple:
    content, position, segment, keys, values, positions, equal, start, key, weights = residuals
    g, dweights_out = cotangents
    dropped, undrop = jax.vjp(lambda w: dropout.apply(key, w, rate), weights)
    dvalues = jnp.einsum("bhts,bthk->bshk", dropped, g)
    dweights = (undrop(jnp.einsum("bthk,bshk->bhts", g, values))[0] + dweights_out).astype(jnp.float32)
    weights = weights.astype(jnp.float32)
    mean = (weights * dweights).sum(-1, keepdims=True) / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
    dlogits = (weights * (dweights - mean)).astype(content.dtype)  # 0 where a query does not attend
    dcontent = jnp.einsum("bhts,bshk->bthk", dlogits, keys)
    dkeys = jnp.einsum("bhts,bthk->bshk", dlogits, content)
    n = positions.shape[-3]
    by_distance = unshift(dlogits, start, n, keys.shape[1])
    per_example = positions.ndim == 4
    dposition = jnp.einsum("bhtn,bnhk->bthk" if per_example else "bhtn,nhk->bthk", by_distance, positions)
    dpositions = jnp.einsum("bhtn,bthk->bnhk" if per_example else "bhtn,bthk->nhk", by_distance, position)
    dsegment = None if segment is None else jnp.where(equal[:, None], dlogits, 0).sum(-1).transpose(0, 2, 1)
    return dcontent, dposition, dsegment, dkeys, dvalues, dpositions, None, None, None, None


_attend = with_gradient(_forward, _backward, nondiff_argnums=(10,))
