"""What the fused kernels of accelerators have in common: no other mask, no dropout, no probabilities."""

from collections.abc import Callable
from functools import partial

from lmrep.core.params import Array
from lmrep.core.sharding import map_shards
from lmrep.layers import chunked_attention
from lmrep.layers.attention import Attend, AttentionMask, KVCache


def attend(mask: AttentionMask, kernel: Callable[..., Array], name: str) -> Attend:
    """Attention under `mask` by `kernel`, on each device for its examples and heads. Queries at chosen positions (`at`)
    go through `chunked_attention`.

    Args:
      mask: without `AttentionMask.mask`.
      kernel: (query, keys, values, all [b, t, h, k], segment_ids [b, t], causal=) -> [b, t, h, k].
      name: of the kernel, for messages.
    """
    if mask.mask is not None:
        raise ValueError(f"{name} takes no mask beside segment ids and causality; use xla or chunked")

    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        if key is not None and rate:
            raise ValueError(f"{name} is used without dropout; use xla or chunked")
        if at is not None:
            return chunked_attention.attend(mask)(query, kv, at=at)
        axes = ("batch", None, "heads", None)
        return map_shards(partial(kernel, causal=mask.causal), (axes, axes, axes, ("batch", None)),
                          query, kv.keys, kv.values, mask.segment_ids), None

    return run
