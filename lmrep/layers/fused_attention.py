"""Fused attention of accelerators: cuDNN's on NVIDIA GPUs, and JAX's Pallas kernel for TPUs ("splash attention").

cuDNN is used only where its result is exact: one text per example, padding at its end, causal or not, in bfloat16.
JAX gives it a window only under a causal mask: it has no bound on the right, and would read all later positions. The
public call takes lengths and no segment ids. A mask would become a bias of [b, 1, t, s] with a gradient of its own
(and NaN gradients on Hopper at some lengths), so none is passed. Its dropout would not be repeated exactly by a run
that is resumed or on another mesh, so there is none.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks

from lmrep.core.params import Array
from lmrep.core.sharding import map_shards
from lmrep.layers import chunked_attention, local_attention
from lmrep.layers.attention import Attend, AttentionMask, KVCache

LANES = 128  # sizes of splash attention's blocks are multiples of it
BLOCKS = (512, 384, 256, 128)


def cudnn(mask: AttentionMask) -> Attend:
    """Computes attention under a mask whose segment ids are 1 ... 1 0 ... 0 in every example; the output of others is
    NaN, and zero at padding. Raises ValueError for a window without a causal mask."""
    if mask.window and not mask.causal:
        raise ValueError("cuDNN's attention takes a window under a causal mask only; use xla or chunked")
    return _attend(mask, _cudnn, "cuDNN's attention")


def splash(mask: AttentionMask, interpret: bool = False, cap: float = 0.0) -> Attend:
    """Computes attention under `mask`, for any length. `interpret` runs the kernel without a TPU, slowly; `cap` as in
    `attention.dense`."""
    return _attend(mask, partial(_splash, interpret=interpret, cap=cap), "splash attention", cap)


def _attend(mask: AttentionMask, kernel: Callable[..., Array], name: str, cap: float = 0.0) -> Attend:
    """Computes attention under `mask` by `kernel`, on each device for its examples and heads: (query, keys, values, all
    [b, t, h, k], segment_ids [b, t], causal=, window=) -> [b, t, h, k]. Queries at chosen positions (`at`) go through
    `chunked_attention`, or with a window `local_attention`."""
    if mask.mask is not None:
        raise ValueError(f"{name} takes no mask beside segment ids and causality; use xla or chunked")

    def run(query: Array, kv: KVCache, *, at: Array | None = None, rate: float = 0.0, key: Array | None = None):
        if key is not None and rate:
            raise ValueError(f"{name} is used without dropout; use xla or chunked")
        if at is not None:
            chosen = local_attention if mask.window else chunked_attention
            return chosen.attend(mask, cap=cap)(query, kv, at=at)
        axes = ("batch", None, "heads", None)
        return map_shards(partial(kernel, causal=mask.causal, window=mask.window), (axes, axes, axes, ("batch", None)),
                          query, kv.keys, kv.values, mask.segment_ids), None

    return run


def _cudnn(query: Array, keys: Array, values: Array, segment_ids: Array, causal: bool, window: int) -> Array:
    real = segment_ids > 0
    lengths = real.sum(1, dtype=jnp.int32)
    single = (segment_ids == (jnp.arange(segment_ids.shape[1]) < lengths[:, None])).all(1)
    # Whatever cuDNN leaves in the gradients at padding is dropped.
    query, keys, values = (jnp.where(real[..., None, None], x, 0) for x in (query, keys, values))
    lengths = jnp.maximum(lengths, 1)
    output = jax.nn.dot_product_attention(
        query, keys, values, is_causal=causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths,
        local_window_size=(window, 0) if window else None, implementation="cudnn")
    output = jnp.where(real[..., None, None], output, 0)
    return jnp.where(single[:, None, None, None], output, jnp.nan)


def _splash(
    query: Array, keys: Array, values: Array, segment_ids: Array, causal: bool, window: int, interpret: bool, cap: float
) -> Array:
    length, heads = query.shape[1:3]
    padding = -length % LANES
    size = length + padding
    segments = jnp.pad(segment_ids, ((0, 0), (0, padding)), constant_values=-1)  # attend to each other only
    query, keys, values = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))).swapaxes(1, 2)
                           for x in (query * query.shape[-1] ** -0.5, keys, values))
    # Blocks of a window are not larger than the window, up to lanes: a query computes whole blocks.
    block = next(block for block in BLOCKS if size % block == 0 and (not window or block < window + LANES))
    sizes = splash_kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block)
    visible = (splash_masks.CausalMask if causal else splash_masks.FullMask)((size, size))
    if window:
        visible = splash_masks.LocalMask((size, size), (window, 0 if causal else window), offset=0)
    run = splash_kernel.make_splash_mha_single_device(
        splash_masks.MultiHeadMask([visible] * heads), block_sizes=sizes, attn_logits_soft_cap=cap or None,
        interpret=interpret)
    output = jax.vmap(run)(query, keys, values, splash_kernel.SegmentIds(segments, segments))
    return output.swapaxes(1, 2)[:, :length]
