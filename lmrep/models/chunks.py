"""Long texts on recurrent networks, read in chunks (BPT3C of ULMFiT, Howard and Ruder, 2018, and the truncated
backpropagation of Dai and Le, 2015).

The state continues from chunk to chunk, and gradients stop between them. Training keeps the activations of one chunk:
of the others, it keeps the state and three vectors, and computes the rest again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.layers.attention import AttentionMask
from lmrep.layers.pooling import largest
from lmrep.models.base import Encoded, Inputs, NetworkLoss


@dataclass(frozen=True)
class Chunks:
    """The chunks of texts."""

    size: int = setting(0, "tokens of a chunk, of lstm and awd_lstm: a text is read chunk by chunk, and gradients stop "
                        "between chunks; 0: it is read at once", at_least=0)
    counted_from: str = setting("end", "where chunks are counted from: the end of a text, so that its last chunk is "
                                "full, or the start", choices=("end", "start"))
    kept: int = setting(0, "the last tokens of a text that its maximum and mean are over; gradients reach the chunks "
                        "that have them; 0: all", at_least=0)


def read(
    params: Tree, inputs: Inputs, key: Array | None = None, *, chunks: Chunks,
    encode: Callable[..., Encoded], initial: Callable[[int], Tree],
) -> Encoded:
    """Implements `State.read`.

    Args:
      params: the network's.
      inputs: a text in each row, whose first token is at position 0, with padding after it.
      key: for dropout, whose masks are drawn anew for each chunk; None for none.
      chunks: their `size` is at least 1.
      encode: the network's `Model.encode`.
      initial: batch size -> the state before a text.

    Returns:
      `hidden` [b, 3, d]: the output at the last token, the maximum and the mean over the kept tokens; 0 for a text
      without tokens. `losses` are those of the chunks with kept tokens.
    """
    segment_ids = inputs.attention_mask.segment_ids
    b, t = segment_ids.shape
    size = min(chunks.size, t)
    count, lengths = -(-t // size), (segment_ids > 0).sum(1, keepdims=True)
    index = jnp.arange(count * size) - (count * size - lengths if chunks.counted_from == "end" else 0 * lengths)
    real = (index >= 0) & (index < lengths)
    kept = real & (index >= lengths - chunks.kept) if chunks.kept else real
    tokens = jnp.take_along_axis(inputs.tokens, jnp.clip(index, 0, t - 1), 1)
    by_chunk = (*(x.reshape(b, count, size).swapaxes(0, 1) for x in (tokens, real, kept, index == lengths - 1)),
                jnp.arange(count))

    def run(params: Tree, state: Tree, chunk: tuple[Array, ...]) -> tuple[Tree, tuple]:
        tokens, real, kept, last, number = chunk
        mask = AttentionMask(real.astype(jnp.int32), causal=True)
        encoded = encode(params, Inputs(tokens, attention_mask=mask, carry=jax.lax.stop_gradient(state)),
                         key if key is None else jax.random.fold_in(key, number))
        x, counts = encoded.hidden, kept[..., None]
        vectors = (jnp.where(last[..., None], x, 0).sum(1), largest(x, jnp.where(counts, x, -jnp.inf), 1),
                   jnp.where(counts, x, 0).sum(1, dtype=jnp.float32))
        losses = {name: NetworkLoss(kept.any() * loss.sum, kept.any() * loss.count, loss.weight)
                  for name, loss in encoded.losses.items()}
        return encoded.carry, (vectors, losses)

    state = initial(b)
    if chunks.counted_from == "end" and chunks.kept:  # no gradient reaches the chunks before the kept ones
        before = max(0, count - -(-chunks.kept // size))
        state, _ = jax.lax.scan(lambda state, chunk: (run(jax.lax.stop_gradient(params), state, chunk)[0], None), state,
                                jax.tree.map(lambda x: x[:before], by_chunk))
        by_chunk = jax.tree.map(lambda x: x[before:], by_chunk)
    _, ((last, most, total), losses) = jax.lax.scan(
        partial(jax.checkpoint(run, prevent_cse=False), params), state, by_chunk)
    present = by_chunk[2].any(-1)[..., None]
    most = jnp.where(present.any(0), largest(most, jnp.where(present, most, -jnp.inf), 0), 0)
    mean = (total.sum(0) / jnp.maximum(kept.sum(1, keepdims=True), 1)).astype(most.dtype)
    return Encoded(jnp.stack([last.sum(0), most, mean], 1), losses={
        name: NetworkLoss(loss.sum.sum(), loss.count.sum(), loss.weight[0]) for name, loss in losses.items()})
