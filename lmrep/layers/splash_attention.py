"""JAX's fused attention for TPUs ("splash attention"), a Pallas kernel with segment ids."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from lmrep.core.params import Array
from lmrep.layers import fused_attention
from lmrep.layers.attention import Attend, AttentionMask

LANES = 128  # sizes of blocks are multiples of it
BLOCKS = (512, 384, 256, 128)


def attend(mask: AttentionMask, interpret: bool = False) -> Attend:
    """Attention under `mask`, for any length. `interpret` runs the kernel without a TPU, slowly."""
    return fused_attention.attend(mask, partial(_attend, interpret=interpret), "splash attention")


def _attend(query: Array, keys: Array, values: Array, segment_ids: Array, causal: bool, interpret: bool) -> Array:
    length, heads = query.shape[1:3]
    padding = -length % LANES
    size = length + padding
    segments = jnp.pad(segment_ids, ((0, 0), (0, padding)), constant_values=-1)  # attend to each other only
    query, keys, values = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))).swapaxes(1, 2)
                           for x in (query * query.shape[-1] ** -0.5, keys, values))
    run = kernel.make_splash_mha_single_device(
        masks.MultiHeadMask([(masks.CausalMask if causal else masks.FullMask)((size, size))] * heads),
        block_sizes=_block_sizes(size), interpret=interpret)
    output = jax.vmap(run)(query, keys, values, kernel.SegmentIds(segments, segments))
    return output.swapaxes(1, 2)[:, :length]


def _block_sizes(size: int) -> kernel.BlockSizes:
    block = next(block for block in BLOCKS if size % block == 0)
    return kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block)
