"""The Biattentive Classification Network of CoVe (McCann et al., 2017, section 5): one vector for two texts, or for a
text that is compared with itself.

    feed-forward layer with ReLU -> biLSTM -> H
    each token attends to the tokens of the other text: C = sum_j softmax_j(H_i . H_j) H_j
    biLSTM on [H; H - C; H * C], one for each text
    maximum, mean, minimum and a learned weighted sum over the tokens of each text, side by side
    maxout layers with batch normalization

The texts of a pair are two ranges of one sequence, which token types tell apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.layers import batch_norm, dropout, linear, recurrent
from lmrep.layers.attention import MASKED_LOGIT
from lmrep.layers.pooling import largest
from lmrep.tasks.base import TextNetwork

SIDES = ("first", "second")


@dataclass(frozen=True)
class Config:
    """The sizes of the network. The paper searches those of the maxout layers for each task."""

    width: int = setting(300, "w, of the feed-forward layer and of each direction of the LSTM layers", at_least=1)
    maxout: tuple[int, ...] = setting((1200, 600, 300), "widths of the maxout layers; () for none", at_least=1)
    pieces: int = setting(4, "linear functions whose maximum each unit of a maxout layer is", at_least=1)
    dropout: float = setting(0.2, "dropout rate before the feed-forward layer and before each maxout layer",
                             at_least=0, below=1)


class Texts(NamedTuple):
    """The positions of the texts in a batch."""

    segment_ids: Array  # i32[b, t], the unit of each token, from 1; 0 at padding
    second: Array  # bool[b, t], the tokens of the second text of a pair
    units: Array  # bool[b, n], whether there is such a unit


def specs(c: Config, d: int) -> Tree:
    """Declares the parameters of a network that reads token vectors of width d."""
    w, h = c.width, 2 * c.width
    widths = [8 * h, *c.maxout]

    def dense(d_in: int, d_out: int) -> Tree:
        return linear.specs(d_in, d_out, ("embed", None), recurrent.uniform(d_in**-0.5))

    return {
        "feed_forward": dense(d, w),
        "encoder": recurrent.bidirectional_specs(w, w, 1),
        "integrate": {side: recurrent.bidirectional_specs(3 * h, w, 1) for side in SIDES},
        "pooling": {side: {"vector": ParamSpec((h,), (None,), recurrent.uniform(h**-0.5))} for side in SIDES},
        "maxout": {str(i): {"dense": dense(widths[i], c.pieces * wide), "norm": batch_norm.specs(c.pieces * wide)}
                   for i, wide in enumerate(c.maxout)}}


def statistics(c: Config) -> Tree:
    """Returns the running statistics of the maxout layers before the first batch."""
    return {str(i): batch_norm.statistics(c.pieces * width) for i, width in enumerate(c.maxout)}


def output_width(c: Config) -> int:
    """Returns the width of the result."""
    return c.maxout[-1] if c.maxout else 16 * c.width


def apply(
    params: Tree, c: Config, x: Array, texts: Texts, running: Tree, key: Array | None = None
) -> tuple[Array, Tree]:
    """Computes a vector for each unit.

    Args:
      params: laid out as `specs`.
      c: the config.
      x: [b, t, d], token vectors.
      texts: the positions of the texts.
      running: the running statistics, laid out as `statistics`.
      key: for dropout, and to normalize by the statistics of the batch; None for neither.

    Returns:
      ([b, n, `output_width`], the running statistics after the batch).
    """
    keys, after = prng.split(key, 1 + len(c.maxout)), {}
    y = represent(params, dropout.apply(keys[0], x, c.dropout), texts)
    for (name, layer), layer_key in zip(sorted(params["maxout"].items()), keys[1:], strict=True):
        y = linear.apply(layer["dense"], dropout.apply(layer_key, y, c.dropout))
        y, after[name] = batch_norm.apply(layer["norm"], running[name], y, texts.units, training=key is not None)
        y = y.reshape(*y.shape[:-1], -1, c.pieces)
        y = largest(y, y, -1)
    return y, after


def represent(params: Tree, x: Array, texts: Texts) -> Array:
    """Computes the vectors [b, n, 16 w] of units below the maxout layers, 8 w of each of the two texts."""
    ids, second = texts.segment_ids, texts.second
    same = (ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, None, :]  # [b, t, s]
    paired = (same & second[:, None, :]).any(-1)  # [b, t], whether the unit has two texts
    x = jax.nn.relu(linear.apply(params["feed_forward"], x))
    h = recurrent.bidirectional(params["encoder"], x, jnp.where(ids > 0, 2 * ids - 1 + second, 0))
    other = same & ((second[:, :, None] != second[:, None, :]) | ~paired[:, :, None])
    context = attend(h, other)
    z = jnp.concatenate([h, h - context, h * context], -1)
    pooled = []
    for side, read in zip(SIDES, (~second, second | ~paired), strict=True):
        side_ids = jnp.where(read, ids, 0)
        y = recurrent.bidirectional(params["integrate"][side], z, side_ids)
        mask = side_ids[:, None] == jnp.arange(1, texts.units.shape[1] + 1)[:, None]  # [b, n, t]
        pooled.append(pool(params["pooling"][side], y, mask))
    return jnp.concatenate(pooled, -1)


def attend(h: Array, mask: Array) -> Array:
    """Computes sum_j softmax_j(h_i . h_j) h_j over the tokens j where `mask` bool[b, t, s] holds, [b, t, d] -> [b, t,
    d]; 0 if there is no such token."""
    logits = jnp.einsum("btd,bsd->bts", h, h, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(mask, logits, MASKED_LOGIT)) * mask
    return jnp.einsum("bts,bsd->btd", weights.astype(h.dtype), h)


def pool(params: Tree, y: Array, mask: Array) -> Array:
    """Computes maximum, mean, minimum and learned weighted sum [b, n, 4 d] of y [b, t, d] over the tokens of each unit,
    `mask` bool[b, n, t]; 0 for units without tokens."""
    spread = jnp.broadcast_to(y[:, None], (*mask.shape, y.shape[-1]))  # [b, n, t, d]
    most, least = (
        jnp.where(mask.any(-1)[..., None], largest(spread, jnp.where(mask[..., None], ranks, -jnp.inf), 2), 0)
        for ranks in (spread, -spread))
    mean = jnp.einsum("bnt,btd->bnd", mask / jnp.maximum(mask.sum(-1, keepdims=True), 1).astype(y.dtype), y)
    logits = (y.astype(jnp.float32) @ params["vector"])[:, None]
    weights = jax.nn.softmax(jnp.where(mask, logits, MASKED_LOGIT)) * mask
    total = jnp.einsum("bnt,btd->bnd", weights.astype(y.dtype), y)
    return jnp.concatenate([most, mean, least, total], -1)


def _apply_to_batch(
    params: Tree, c: Config, x: Array, batch: Mapping[str, Array], running: Tree, key: Array | None
) -> tuple[Array, Tree]:
    texts = Texts(batch["segment_ids"], batch["token_type_ids"] == 1, batch["unit"] >= 0)
    return apply(params, c, x, texts, running, key)


DEFINITION = TextNetwork(
    specs, lambda c, d: statistics(c), output_width, _apply_to_batch, pooled=False,
    fields={"pooling": "position", "dense": False, "dropout": 0.0})
