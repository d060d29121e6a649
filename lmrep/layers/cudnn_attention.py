"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

Only what it computes exactly is used: one text per example, padding at its end, causal or not, in bfloat16. The public
call takes lengths and no segment ids. A mask would become a bias of [b, 1, t, s] with a gradient of its own (and NaN
gradients on Hopper at some lengths), so none is passed. Its dropout would not be repeated exactly by a run that is
resumed or on another mesh, so there is none.
"""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array
from lmrep.layers import fused_attention
from lmrep.layers.attention import Attend, AttentionMask


def attend(mask: AttentionMask) -> Attend:
    """Attention under a mask whose segment ids are 1 ... 1 0 ... 0 in every example; the output of others is NaN, and
    zero at padding."""
    return fused_attention.attend(mask, _attend, "cuDNN's attention")


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
