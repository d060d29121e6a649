"""The vector of a text: pooled from the vectors of its tokens, or of a long text that a recurrent network reads in
chunks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.layers import attention_pooling
from lmrep.layers.pooling import largest
from lmrep.models.base import Inputs, Model
from lmrep.objectives.base import Batch
from lmrep.tasks import heads

READ = {"position": [0], "max": [1], "mean": [2], "concat": [0, 1, 2]}  # pooling -> its vectors of `State.read`


def is_chunked(c: Any) -> bool:
    """Tells whether a task with the config `c` reads texts in chunks."""
    return hasattr(c, "chunks") and c.chunks.size > 0


def check(c: Any, model: Model, others: Sequence[str]) -> None:
    """Raises UserError where texts cannot be read in chunks; `others` are the fields of other parts that are read."""
    if hasattr(c, "chunks") and c.chunks.padding and not (c.chunks.size and c.chunks.counted_from == "end"):
        raise UserError("config.objective.chunks.padding is True, which needs chunks that are counted from the end, "
                        f"and chunks.size is {c.chunks.size} and chunks.counted_from {c.chunks.counted_from}; set "
                        "padding to False, or counted_from to end and size to 70")
    if not is_chunked(c):
        return
    others = [*others, *([f"pooling={c.pooling}"] if c.pooling not in READ else []), *(
                  name for name in ("auxiliary", "word_dropout", "linear_gain") if getattr(c, name, 0))]
    if model.state.read is None:
        raise UserError(f"config.objective.chunks.size is {c.chunks.size}, and the network {model.name!r} is not read "
                        "in chunks, as lstm and awd_lstm are; set it to 0")
    if others:
        raise UserError(f"config.objective.chunks.size is {c.chunks.size}, and config.objective has {others[0]}, which "
                        "needs the vectors of all tokens; set one of the two to its default")


def read(c: Any, model: Model, params: Tree, inputs: Inputs, units: int, key: Array | None = None) -> Array:
    """Reads texts in chunks: [b, d], or [b, 3 d] with pooling "concat". `units` is the number of texts, `params` are
    those of the network. Raises UserError for packed texts."""
    if len(inputs.tokens) != units:
        raise UserError(f"config.objective.chunks.size is {c.chunks.size}, and config.format.packed is True; texts "
                        "that are read in chunks are not packed: set one of the two to its default")
    chunks = replace(c.chunks, kept=1) if c.pooling == "position" else c.chunks  # one token is all that is read
    hidden = model.state.read(params, inputs, key, chunks=chunks).hidden[:, jnp.array(READ[c.pooling])]
    return hidden.reshape(units, -1)


def pool(c: Any, model: Model, params: Tree, x: Array, batch: Batch) -> Array:
    """Pools the vectors x of tokens, [b, t, d], or [b * k, t, d] for grouped units, to a vector of each unit: [b, n,
    d], or [b, n, 3 d] with pooling "concat". `params` are those of `attention_pooling`."""
    shape = batch["first"].shape
    mask = heads.unit_tokens(heads.ungrouped(batch), 1 if len(x) != shape[0] else shape[1])

    def at_position() -> Array:
        at = heads.positions(batch, model, c).reshape(len(x), -1)
        return jnp.take_along_axis(x, at[..., None], axis=1)

    def most() -> Array:
        spread = jnp.broadcast_to(x[:, None], (*mask.shape, x.shape[-1]))
        y = largest(spread, jnp.where(mask[..., None], spread, -jnp.inf), 2)
        return jnp.where(mask.any(-1)[..., None], y, 0)

    ways = {"position": at_position, "max": most, "mean": lambda: heads.mean(x, mask),
            "attention": lambda: attention_pooling.apply(params, x, mask)}
    chosen = ("position", "max", "mean") if c.pooling == "concat" else (c.pooling,)
    return jnp.concatenate([ways[way]() for way in chosen], -1).reshape(*shape, -1)
