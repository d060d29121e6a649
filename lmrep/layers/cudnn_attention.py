"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

Only what it computes exactly is used: one text per example, padding at its end, causal or not, in bfloat16. The public
call takes lengths and no segment ids. A mask would become a bias of [b, 1, t, s] with a gradient of its own (and NaN
gradients on Hopper at some lengths), so none is passed. Its dropout would not be repeated exactly by a run that is
resumed or on another mesh, so there is none.
"""

from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.core.sharding import map_shards
from lmrep.layers import chunked_attention
from lmrep.layers.attention import Attend, AttentionMask, KVCache


def attend(mask: AttentionMask) -> Attend:
    """Attention under a mask whose segment ids are 1 ... 1 0 ... 0 in every example; the output of others is NaN, and
    zero at padding. Gives no probabilities. Queries at chosen positions (`at`) go through `chunked_attention`."""
    if mask.mask is not None:
        raise ValueError("cuDNN's attention takes no mask beside segment ids and causality; use xla or chunked")

    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        if key is not None and rate:
            raise ValueError("cuDNN's attention is used without dropout; use xla or chunked")
        if at is not None:
            return chunked_attention.attend(mask)(query, kv, at=at)
        axes = ("batch", None, "heads", None)
        return map_shards(partial(_attend, causal=mask.causal), (axes, axes, axes, ("batch", None)),
                          query, kv.keys, kv.values, mask.segment_ids), None

    return run


def _attend(query: Array, keys: Array, values: Array, segment_ids: Array, causal: bool) -> Array:
    real = segment_ids > 0
    lengths = real.sum(1, dtype=jnp.int32)
    single = (segment_ids == (jnp.arange(segment_ids.shape[1]) < lengths[:, None])).all(1)
    # Whatever cuDNN leaves in the gradients at padding is dropped.
    query, keys, values = (jnp.where(real[..., None, None], x, 0) for x in (query, keys, values))
    lengths = jnp.maximum(lengths, 1)
    output = jax.nn.dot_product_attention(
        query, keys, values, is_causal=causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths,
        implementation="cudnn")
    output = jnp.where(real[..., None, None], output, 0)
    return jnp.where(single[:, None, None, None], output, jnp.nan)
