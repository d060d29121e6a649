"""The heads of tasks, as in published code: [dropout, dense, activation, norm,] dropout, output."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, Initializer, Tree, truncated_normal
from lmrep.layers import dropout, linear, norm
from lmrep.models.base import Model
from lmrep.models.presets import TASK_HEADS
from lmrep.objectives.base import Batch

ACTIVATIONS = {"tanh": jnp.tanh, "gelu": lambda x: jax.nn.gelu(x, approximate=False), "relu": jax.nn.relu}


@dataclass(frozen=True)
class Head:
    """A head on one vector of each text, and how the network reads the text. The defaults are BERT's."""

    context: str = setting("both", "what each position is conditioned on: both sides, or the left alone (GPT); init= "
                           "sets that of the run", choices=("both", "left"))
    dense: bool = setting(True, "a dense layer before the output layer: BERT's pooler; GPT and GPT-2 have none")
    hidden: int = setting(0, "width of the dense layer; 0: that of the vector that it reads", at_least=0)
    activation: str = setting("tanh", "of the dense layer: tanh as in BERT and RoBERTa, gelu as in ELECTRA",
                              choices=tuple(ACTIVATIONS))
    dropout: float = setting(0.1, "dropout rate before the output layer", at_least=0, below=1)
    input_dropout: float = setting(0.0, "dropout rate before the dense layer (RoBERTa and ELECTRA: 0.1)", at_least=0,
                                   below=1)
    init_stddev: float = setting(0.0, "standard deviation of a new head's initial weights; 0: as the network's",
                                 at_least=0)
    bias: bool = setting(True, "whether the output layer has a bias; GPT-2's has none")
    end_of_text: bool = setting(True, "context left: an end-of-text token after each text, which stands for it; where "
                                "there is none (GPT-2), the last token of the text does")
    start_of_text: bool = setting(False, "context left: an end-of-text token before each text, as fastai's xxbos")
    norm: bool = setting(False, "a norm after the dense layer, both of the network's kind, as in ModernBERT")


def published(config: type, family: str) -> dict[str, Any]:
    """Returns the fields that published systems of a family of presets set in a task's config, of the class `config`;
    {} if there are none."""
    names = getattr(config, "published", ())
    return {name: value for name, value in TASK_HEADS.get(family, {}).items() if name in names}


def specs(model: Model, outputs: int, c: Head, width: int = 0, init: Initializer | None = None) -> Tree:
    """Declares the parameters of a head with so many outputs, on vectors of the network's width, or `width`. Initial
    kernels are those of `init_stddev`, of `init`, or else the network's."""
    width = width or model.width
    hidden = (c.hidden or width) if c.dense else width
    init = truncated_normal(c.init_stddev) if c.init_stddev else init or model.head_style.init
    out = linear.specs(hidden, outputs, (None, None), init)
    if not c.bias:
        del out["bias"]
    if not c.dense:
        return {"out": out}
    style, dense = model.head_style, linear.specs(width, hidden, ("embed", None), init)
    if not c.norm:
        return {"dense": dense, "out": out}
    if not style.bias:
        del dense["bias"]
    return {"dense": dense, "norm": norm.specs(hidden, style.norm), "out": out}


def apply(params: Tree, x: Array, c: Head, model: Model, key: Array | None = None) -> Array:
    """Applies a head: x [..., d] -> float32 [..., outputs]; `key` is for dropout, None for none."""
    keys = prng.split(key, 2)
    if c.dense:
        x = ACTIVATIONS[c.activation](linear.apply(params["dense"], dropout.apply(keys[0], x, c.input_dropout)))
        if c.norm:
            x = norm.apply(params["norm"], x, model.head_style.eps, model.head_style.norm)
    x = dropout.apply(keys[1], x, c.dropout).astype(jnp.float32)
    y = x @ params["out"]["kernel"]
    return y + params["out"]["bias"] if c.bias else y


def positions(batch: Batch, model: Model, c: Head) -> Array:
    """Returns the position whose vector represents each unit, i32[b, n]."""
    return batch["first"] if c.context == "both" and model.head_style.pooling == "first" else batch["last"]


def ungrouped(batch: Batch) -> Batch:
    """Reshapes the tokenwise fields [b, k, t, ...] of grouped units to [b * k, t, ...]. Returns other batches as they
    are."""
    shape = batch["tokens"].shape
    if len(shape) == 2:
        return batch
    return {name: value.reshape(-1, *value.shape[2:]) for name, value in batch.items() if value.shape[:3] == shape}


def unit_tokens(batch: Batch, slots: int) -> Array:
    """Tells which tokens of a batch [b, t] belong to each of its `slots` units, bool [b, slots, t]."""
    return batch["segment_ids"][:, None] == jnp.arange(1, slots + 1)[:, None]


def mean(x: Array, mask: Array) -> Array:
    """Computes the means [b, n, d] of x [b, t, d] over the tokens of `mask` bool [b, n, t]; 0 without tokens."""
    total = jnp.einsum("bnt,btd->bnd", mask.astype(x.dtype), x, preferred_element_type=jnp.float32)
    return (total / jnp.maximum(mask.sum(-1, keepdims=True), 1)).astype(x.dtype)
