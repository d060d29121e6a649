"""Truncated backpropagation through time within a batch: a recurrent network reads its sequences in chunks, each of
which continues the state of the one before it, without a gradient."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.models.base import Context, Encoded, Model, model_inputs


def check(model: Model, field: str) -> None:
    """Raises UserError, which names the `field` that asks for chunks, if the network has no state to carry."""
    if model.state.carry is None:
        raise UserError(f"{field} reads texts in chunks, and the network {model.name!r} has no state to carry from one "
                        "to the next; set it to 0, or choose a recurrent network")


def encode(
    params: Tree, batch: Mapping[str, Array], model: Model, key: Array | None = None, chunk: int = 0
) -> Encoded:
    """Reads `batch`, arrays [b, t, ...] of `model_inputs`, from left to right in chunks of `chunk` positions; 0: at
    once. Returns `hidden` [b, t, d] and the last state. `key` is for dropout; each chunk has masks of its own."""
    t = batch["tokens"].shape[1]
    if not 0 < chunk < t:
        return model.encode(params, model_inputs(model, batch, conditions_on=Context.LEFT), key)
    starts, hidden, carry = range(0, t, chunk), [], model.state.carry(len(batch["tokens"]))
    for start, chunk_key in zip(starts, prng.split(key, len(starts)), strict=True):
        part = {name: x[:, start : start + chunk] for name, x in batch.items()}
        inputs = model_inputs(model, part, conditions_on=Context.LEFT, carry=jax.lax.stop_gradient(carry))
        encoded = model.encode(params, inputs, chunk_key)
        carry = encoded.carry
        hidden.append(encoded.hidden)
    return Encoded(jnp.concatenate(hidden, 1), carry=carry)
