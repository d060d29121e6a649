"""An output table whose logits are soft-capped (Gemma 2), as the output layer of a network."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, ParamSpec, Tree
from lmrep.core.sharding import gather
from lmrep.layers import lm_head, soft_cap
from lmrep.models.base import OutputLayer


def output_layer(
    cap: float, vocab: int, width: int, init: Initializer, table: Callable[..., Array] | None
) -> OutputLayer:
    """Returns the softmax over the capped logits of a table [vocab, width]: `table` (params, key=None) of a network
    that ties it, None for one that belongs to the head."""
    of = table or (lambda params, key=None: params["output"])

    def bound(f: Callable[..., Array]) -> Callable[..., Array]:
        def run(params: Tree, head: Tree, x: Array, *arrays: Array) -> Array:
            return f(of(params if table else head), head.get("bias"), x, *arrays, cap=cap)

        return run

    def cross_entropy(
        params: Tree, head: Tree, x: Array, targets: Array, weights: Array, key: Array | None = None
    ) -> tuple[Array, Array, Array]:
        nll, correct = _scores(of(params if table else head, key), head.get("bias"), x, targets, cap=cap)
        return (nll * weights).sum(), jax.lax.stop_gradient(nll), correct

    specs = {} if table else {"output": ParamSpec((vocab, width), ("vocab", "embed"), init)}
    return OutputLayer(specs, cross_entropy, bound(lambda *arrays, cap: -_scores(*arrays, cap=cap)[0]), bound(_logits))


def _logits(table: Array, bias: Array | None, x: Array, *, cap: float) -> Array:
    return soft_cap.apply(lm_head.logits({} if bias is None else {"bias": bias}, table, x), cap)


def _scores(table: Array, bias: Array | None, x: Array, targets: Array, *, cap: float) -> tuple[Array, Array]:
    """Returns (nll [b, t] of `targets` i32[b, t]; correct bool[b, t], without a gradient), in chunks where the logits
    would be large."""
    table = gather(table, lm_head.TABLE, "embed")

    def of_chunk(x: Array, targets: Array) -> Array:
        y = _logits(table, bias, x, cap=cap)
        target = jnp.take_along_axis(y, targets[..., None], axis=-1)[..., 0]
        return jnp.stack([jax.nn.logsumexp(y, axis=-1) - target, target >= y.max(-1)], -1)

    scores = lm_head.map_chunks(of_chunk, table.shape[0], x, targets)
    return scores[..., 0], jax.lax.stop_gradient(scores[..., 1]) > 0
