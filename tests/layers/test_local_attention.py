"""Attention to a window against attention that computes all products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import local_attention
from lmrep.layers.attention import AttentionMask, KVCache, dense

RNG = np.random.default_rng(0)
B, H, K = 2, 3, 4


def inputs(length):
    query, keys, values = RNG.normal(size=(3, B, length, H, K)).astype(np.float32)
    segments = np.sort(RNG.integers(1, 4, (B, length))).astype(np.int32)
    segments[1, length - length // 4 :] = 0
    return query, KVCache(keys, values), segments


@pytest.mark.parametrize(("length", "window", "causal", "cap"), [
    (20, 5, False, 0.0), (23, 3, True, 0.7), (16, 1, False, 0.0), (9, 4, False, 0.7)])
def test_outputs_and_gradients_are_those_under_a_mask(length, window, causal, cap):
    query, kv, segments = inputs(length)
    mask = AttentionMask(jnp.asarray(segments), causal=causal, window=window)
    real, weights = (segments > 0)[..., None, None], RNG.normal(size=query.shape)

    def run(attend):
        def loss(query, kv):
            output = jnp.where(real, attend(query, kv)[0], 0)
            return (output * weights).sum(), output

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(query, kv)

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), run(local_attention.attend(mask, cap)),
                 run(dense(mask.to_bool(), cap=cap)))
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= window
    assert (np.asarray(mask.to_bool()) <= near).all() and np.asarray(mask.to_bool()).any(-1).all()


def test_chosen_positions_dropout_and_other_masks_are_those_of_dense_attention():
    query, kv, segments = inputs(20)
    mask, at = AttentionMask(jnp.asarray(segments), window=2), jnp.asarray(RNG.integers(0, 20, (B, 3)))
    pairs = mask.replace(mask=jnp.asarray(RNG.random((B, 20, 20)) < 0.5))
    for under, options in ((mask, {"at": at}), (mask, {"rate": 0.5, "key": jax.random.key(0)}), (pairs, {})):
        chosen = np.take_along_axis(query, at[..., None, None], 1) if "at" in options else query
        attends = local_attention.attend(under), dense(under.to_bool())
        np.testing.assert_array_equal(*(attend(chosen, kv, **options)[0] for attend in attends))


def test_operations_grow_with_the_length_alone():
    def operations(length):
        shapes = [jax.ShapeDtypeStruct((1, length, H, K), jnp.float32)] * 3
        return jax.jit(lambda query, keys, values: local_attention.attend(AttentionMask(
            jnp.ones((1, length), jnp.int32), window=8))(query, KVCache(keys, values))[0]).lower(
                *shapes).cost_analysis()["flops"]

    assert operations(1024) == pytest.approx(2 * operations(512), rel=0.05)
