"""Long texts on recurrent networks, read in chunks: to a few vectors (BPT3C of ULMFiT, Howard and Ruder, 2018), or to
the vectors of all tokens (the truncated backpropagation of Dai and Le, 2015).

The state continues from chunk to chunk, and gradients stop between them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.layers.attention import AttentionMask
from lmrep.layers.pooling import largest
from lmrep.models.base import Context, Encoded, Inputs, Model, NetworkLoss, model_inputs


@dataclass(frozen=True)
class Chunks:
    """The chunks of texts."""

    size: int = setting(0, "tokens of a chunk, of lstm and awd_lstm: a text is read chunk by chunk, and gradients stop "
                        "between chunks; 0: it is read at once", at_least=0)
    counted_from: str = setting("end", "where chunks are counted from: the end of a text, so that its last chunk is "
                                "full, or the start", choices=("end", "start"))
    padding: bool = setting(False, "counted_from end: whether the padding before shorter texts of a batch is read, and "
                            "counts as tokens of the text, as in fastai 0.7; vectors then depend on the batch")
    kept: int = setting(0, "the last tokens of a text that its maximum and mean are over; gradients reach the chunks "
                        "that have them; 0: all", at_least=0)


def read(
    params: Tree, inputs: Inputs, key: Array | None = None, *, chunks: Chunks,
    encode: Callable[..., Encoded], initial: Callable[[int], Tree],
    losses: Callable[..., Mapping[str, NetworkLoss]] = lambda *_: {},
) -> Encoded:
    """Implements `State.read`. Training keeps the activations of one chunk: of the others, it keeps the state and
    three vectors, and computes the rest again.

    Args:
      params: the network's.
      inputs: a text in each row, whose first token is at position 0, with padding after it.
      key: for dropout, whose masks are drawn anew for each chunk; None for none.
      chunks: their `size` is at least 1.
      encode: the network's `Model.encode`.
      initial: batch size -> the state before a text.
      losses: (state before a chunk, what `encode` returns with its layers, kept bool [b, t], follows bool [b, t]: the
        kept positions after a kept one) -> the network's losses over the kept positions of a chunk.

    Returns:
      `hidden` [b, 3, d]: the output at the last token, the maximum and the mean over the kept tokens; 0 for a text
      without tokens. `losses` are over the kept tokens.
    """
    segment_ids = inputs.attention_mask.segment_ids
    b, t = segment_ids.shape
    size = min(chunks.size, t)
    count, lengths = -(-t // size), (segment_ids > 0).sum(1, keepdims=True)
    index = jnp.arange(count * size) - (count * size - lengths if chunks.counted_from == "end" else 0 * lengths)
    real = (index >= (lengths - t if chunks.padding else 0)) & (index < lengths)
    kept = real & (index >= lengths - chunks.kept) if chunks.kept else real
    follows = kept & jnp.pad(kept[:, :-1], ((0, 0), (1, 0)))
    tokens = jnp.take_along_axis(inputs.tokens, index % t, 1)  # the padding after a text comes before it
    by_chunk = (*(x.reshape(b, count, size).swapaxes(0, 1)
                  for x in (tokens, real, kept, follows, index == lengths - 1)), jnp.arange(count))

    def run(params: Tree, state: Tree, chunk: tuple[Array, ...]) -> tuple[Tree, tuple]:
        tokens, real, kept, follows, last, number = chunk
        mask = AttentionMask(real.astype(jnp.int32), causal=True)
        encoded = encode(params, Inputs(tokens, attention_mask=mask, carry=jax.lax.stop_gradient(state)),
                         key if key is None else jax.random.fold_in(key, number), layers=True)
        x, counts = encoded.hidden, kept[..., None]
        vectors = (jnp.where(last[..., None], x, 0).sum(1), largest(x, jnp.where(counts, x, -jnp.inf), 1),
                   jnp.where(counts, x, 0).sum(1, dtype=jnp.float32))
        return encoded.carry, (vectors, losses(state, encoded, kept, follows))

    state = initial(b)
    if chunks.counted_from == "end" and chunks.kept:  # no gradient reaches the chunks before the kept ones
        before = max(0, count - -(-chunks.kept // size))
        state, _ = jax.lax.scan(lambda state, chunk: (run(jax.lax.stop_gradient(params), state, chunk)[0], None), state,
                                jax.tree.map(lambda x: x[:before], by_chunk))
        by_chunk = jax.tree.map(lambda x: x[before:], by_chunk)
    _, ((last, most, total), terms) = jax.lax.scan(
        partial(jax.checkpoint(run, prevent_cse=False), params), state, by_chunk)
    present = by_chunk[2].any(-1)[..., None]
    most = jnp.where(present.any(0), largest(most, jnp.where(present, most, -jnp.inf), 0), 0)
    mean = (total.sum(0) / jnp.maximum(kept.sum(1, keepdims=True), 1)).astype(most.dtype)
    return Encoded(jnp.stack([last.sum(0), most, mean], 1), losses={
        name: NetworkLoss(loss.sum.sum(), loss.count.sum(), loss.weight[0]) for name, loss in terms.items()})


def check_state(model: Model, field: str) -> None:
    """Raises UserError, which names the `field` that asks for chunks, if the network has no state to carry."""
    if model.state.carry is None:
        raise UserError(f"{field} reads texts in chunks, and the network {model.name!r} has no state to carry from one "
                        "to the next; set it to 0, or choose a recurrent network")


def encode_all(
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
