"""Chunked attention against the implementation that computes all probabilities at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lmrep.core.sharding import make_mesh, use_mesh
from lmrep.layers import attention, chunked_attention
from lmrep.layers.attention import AttentionMask, KVCache
from tests.cases import slow_after
from tests.programs import largest

slow = pytest.mark.slow
B, T, HEADS, K = 4, 21, 2, 8
RNG = np.random.default_rng(0)
QUERY, KEYS, VALUES, WEIGHTS = RNG.normal(size=(4, B, T, HEADS, K)).astype(np.float32)
SEGMENTS = np.sort(RNG.integers(1, 4, (B, T)), axis=1)
SEGMENTS[1, 15:] = 0
MASK = RNG.random((B, T, T)) < 0.5
MASK[0, 3] = False  # attends to nothing
AT = np.sort(RNG.integers(0, T, (B, 9)), axis=1)
KEY = jax.random.key(1)


def dense(mask):
    return attention.dense(mask.to_bool())


def in_blocks(block):
    return lambda mask: chunked_attention.attend(mask, block)


def gradients(make, mask, at=None, rate=0.0, dtype="float32"):
    """(output, gradients of its product with WEIGHTS by queries, keys and values)."""
    def f(query, keys, values, mask, at):
        query = query if at is None else attention.take(query, at)
        output, _ = make(mask)(query, KVCache(keys, values), at=at, rate=rate, key=KEY)
        return (output.astype(jnp.float32) * WEIGHTS[:, : output.shape[1]]).sum(), output

    grads, output = jax.jit(jax.grad(f, argnums=(0, 1, 2), has_aux=True))(
        *(jnp.asarray(x, dtype) for x in (QUERY, KEYS, VALUES)), mask, at)
    return output, *grads


def assert_close(computed, expected, atol=2e-6):
    for x, y in zip(computed, expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x.astype(np.float32), y.astype(np.float32), atol=atol, rtol=1e-5)


# Any two choices occur together. 21 positions are three blocks of 7, or one block.
@pytest.mark.parametrize(("causal", "own_mask", "at", "rate", "block"), [
    (True, None, None, 0.3, 8), *(pytest.param(*case, marks=slow) for case in (
        (False, MASK, AT, 0.3, 8), (False, None, AT, 0.0, 21), (True, MASK, AT, 0.0, 8)))],
    ids=["causal", "masked", "at", "all"])
def test_outputs_and_gradients_are_those_of_dense_attention(causal, own_mask, at, rate, block):
    """With the same dropout, too, and for queries that attend to nothing."""
    mask = AttentionMask(jnp.asarray(SEGMENTS), causal, None if own_mask is None else jnp.asarray(own_mask))
    assert_close(gradients(in_blocks(block), mask, at, rate), gradients(dense, mask, at, rate))


def test_capped_logits():
    """Also in blocks with padding beyond the keys, and at chosen positions."""
    mask = AttentionMask(jnp.asarray(SEGMENTS), causal=True)
    for at, block in ((None, 8), (AT, 6)):
        computed, expected = (gradients(make, mask, at) for make in (
            lambda mask: chunked_attention.attend(mask, block, cap=0.7),  # noqa: B023
            lambda mask: attention.dense(mask.to_bool(), cap=0.7)))
        assert_close(computed, expected)
    assert np.abs(expected[0] - gradients(dense, mask, AT)[0]).max() > 0.05


def test_lengths_that_blocks_do_not_divide():
    mask = AttentionMask(jnp.asarray(SEGMENTS), causal=True)
    assert_close(gradients(in_blocks(5), mask, rate=0.3), gradients(dense, mask, rate=0.3))


def test_bfloat16():
    mask = AttentionMask(jnp.asarray(SEGMENTS))
    expected = gradients(dense, mask)
    errors = [max(np.abs(x.astype(np.float32) - y).max() for x, y in zip(
        gradients(make, mask, dtype="bfloat16"), expected, strict=True)) for make in (in_blocks(8), dense)]
    assert errors[0] <= 1.2 * errors[1]  # no less exact than dense attention in bfloat16


def test_large_logits_do_not_overflow():
    mask, query = AttentionMask(jnp.asarray(SEGMENTS)), 1000 * QUERY
    grads = jax.jit(jax.grad(lambda q: in_blocks(8)(mask)(q, KVCache(KEYS, VALUES))[0].sum()))(query)
    assert np.isfinite(grads).all()


@pytest.mark.parametrize("rate", [0.3])
def test_no_array_grows_with_the_square_of_the_length(rate):
    def size(make, length):
        x = jnp.ones((1, length, HEADS, K))

        def loss(query, keys, values, segments):
            mask = AttentionMask(segments, causal=True)
            return make(mask)(query, KVCache(keys, values), rate=rate, key=KEY)[0].sum()

        return largest(jax.grad(loss, argnums=(0, 1, 2)), x, x, x, jnp.ones((1, length), jnp.int32))

    assert size(in_blocks(32), 1024) == 2 * size(in_blocks(32), 512)
    assert size(dense, 1024) == 4 * size(dense, 512)


@pytest.mark.parametrize(("sizes", "spec"), slow_after(1, [
    ((2, 2, 2), P(("data", "fsdp"), None, "tensor")), ((1, 1, 2, 3), P(None, "sequence", "tensor"))]), ids=str)
def test_every_mesh_computes_the_same(sizes, spec):
    """Each device its examples, positions and heads."""
    mask = AttentionMask(jnp.asarray(SEGMENTS), causal=True)
    expected = gradients(in_blocks(8), mask, rate=0.3)
    with use_mesh(make_mesh(*sizes)) as mesh:
        computed = gradients(in_blocks(8), mask, rate=0.3)
    for x in computed:
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)
    assert_close(computed, expected)
