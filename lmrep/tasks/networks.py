"""The networks of tasks: what is between the vectors of tokens and the output layer.

The vectors are those of `config.model`. A network of bidirectional LSTM layers reads them; a tagger's has one time step
for each word. A text is then represented by one vector, as `pooling` says.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, Tree
from lmrep.layers import attention_pooling, dropout, recurrent
from lmrep.models.base import Model, model_inputs
from lmrep.objectives.base import Batch
from lmrep.tasks import heads

POOLINGS = ("position", "mean", "max", "attention")


@dataclass(frozen=True)
class BiLstm:
    """Bidirectional LSTM layers."""

    width: int = setting(200, "of each direction", at_least=1)
    layers: int = setting(1, "number of layers", at_least=1, at_most=9)
    dropout: float = setting(0.5, "dropout rate on the input of each layer and on the output", at_least=0, below=1)


@dataclass(frozen=True)
class Config(heads.Head):
    """A head, and the network below it."""

    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers", choices=("linear", "bilstm"))
    bilstm: BiLstm = setting(BiLstm(), "the LSTM layers")


@dataclass(frozen=True)
class TextConfig(Config):
    """A head on one vector of a text, and the network below it."""

    pooling: str = setting("position", "the vector that stands for a text: that at the first position, or at the last "
                           "where the network reads from left to right; the mean or the maximum over its tokens; or a "
                           "sum with learned weights (attention)", choices=POOLINGS)


def is_head_alone(c: Any) -> bool:
    """Whether the config of a task has nothing between the encoder and the head."""
    return getattr(c, "network", "linear") == "linear" and getattr(c, "pooling", "position") == "position"


def has_bilstm(c: Config) -> bool:
    """Whether there are LSTM layers."""
    return c.network.startswith("bilstm")


def output_width(c: Config, model: Model) -> int:
    """The width of the vectors that the head reads."""
    return 2 * c.bilstm.width if has_bilstm(c) else model.width


def specs(c: Config, model: Model) -> Tree:
    """The parameters of a network; {} for none."""
    found = {}
    if has_bilstm(c):
        found["bilstm"] = recurrent.bidirectional_specs(model.width, c.bilstm.width, c.bilstm.layers)
    if getattr(c, "pooling", "") == "attention":
        width = output_width(c, model)
        found["pooling"] = attention_pooling.specs(width, width, model.init)
    return found


def task_specs(c: Config, model: Model, name: str, outputs: int) -> Tree:
    """The parameters of task `name`: those of the encoder, of a head with that many outputs, and under `network` those
    between them."""
    head, network = heads.specs(model, outputs, c, output_width(c, model)), specs(c, model)
    return {"encoder": model.specs, "objective": {name: head | ({"network": network} if network else {})}}


def token_vectors(
    params: Tree, batch: Batch, model: Model, c: Config, name: str, key: Array | None = None,
    words: Array | None = None,
) -> Array:
    """The vectors [b, t, d] of tokens that the head of task `name` reads.

    Args:
      params: as `Objective.loss` takes them.
      batch: has the axes [b, t].
      model: the encoder.
      c: the network.
      name: of the task.
      key: for dropout, None for none.
      words: (x [b, t, d] -> [b, t, d], bool[b, t]): makes vectors of words of those of tokens, and the tokens at which
        they are; the LSTM layers read these alone. None: all tokens are read.
    """
    combine, read = words or (lambda x: x, batch["segment_ids"] > 0)
    network_key, output_key = prng.split(None if key is None else jax.random.fold_in(key, 1), 2)
    x = combine(model.encode(params["encoder"], model_inputs(model, batch, context=c.context), key).hidden)
    if has_bilstm(c):
        network = params["objective"][name]["network"]["bilstm"]
        x = recurrent.bidirectional(network, x, jnp.where(read, batch["segment_ids"], 0), network_key, c.bilstm.dropout)
        x = dropout.apply(output_key, x, c.bilstm.dropout)
    return x


def pooled(params: Tree, batch: Batch, model: Model, c: TextConfig, name: str, key: Array | None = None) -> Array:
    """The vector [b, n, d] of each unit; arguments as in `token_vectors`, but for grouped units too."""
    if not has_bilstm(c) and c.pooling == "position":
        return heads.pooled(params, batch, model, c, key)  # the last layer is computed at these positions alone
    shape, flat = batch["first"].shape, heads.ungrouped(batch)
    x = token_vectors(params, flat, model, c, name, key)
    if c.pooling == "position":
        y = jnp.take_along_axis(x, heads.positions(batch, model, c).reshape(len(x), -1)[..., None], axis=1)
        return y.reshape(*shape, -1)
    slots = 1 if len(x) != shape[0] else shape[1]
    mask = flat["segment_ids"][:, None] == jnp.arange(1, slots + 1)[:, None]
    if c.pooling == "attention":
        y = attention_pooling.apply(params["objective"][name]["network"]["pooling"], x, mask)
    elif c.pooling == "mean":
        total = jnp.einsum("bnt,btd->bnd", mask.astype(x.dtype), x, preferred_element_type=jnp.float32)
        y = (total / jnp.maximum(mask.sum(-1, keepdims=True), 1)).astype(x.dtype)
    else:
        y = jnp.where(mask[..., None], x[:, None], -jnp.inf).max(2)
        y = jnp.where(mask.any(-1)[..., None], y, 0)
    return y.reshape(*shape, -1)
