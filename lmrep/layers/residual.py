"""Residual connections, with a norm before each block (pre norm) or after each sum (post norm)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lmrep.core.params import Array, Tree
from lmrep.core.sharding import shard
from lmrep.layers import dropout, norm
from lmrep.layers.attention import take


def apply(
    params: Tree | None, x: Array, block: Callable[[Array], tuple[Array, Any]], *, pre: bool, eps: float,
    kind: str = "layer", rate: float = 0.0, key: Array | None = None, same_along: tuple[int, ...] = (),
    at: Array | None = None,
) -> tuple[Array, Any]:
    """Adds the output of a block to the residual stream x [b, s, d].

    Args:
      params, eps, kind: of the norm, which precedes the block (`pre`) or follows the sum; no params for no norm.
      block: [b, s, d] -> (its output [b, t, d], anything).
      rate, key, same_along: of dropout on the output, as in `dropout.apply`.
      at: i32[b, t], the positions of the output; by default all.

    Returns:
      (the residual stream [b, t, d]; what the block returns beside its output).
    """
    normalize = partial(norm.apply, params, eps=eps, kind=kind) if params else lambda x: x
    inputs, x = normalize(x) if pre else x, x if at is None else take(x, at)
    y, collected = block(inputs)
    x = x + dropout.apply(key, y, rate, same_along)
    return shard(x if pre else normalize(x), "batch", "length", None), collected
