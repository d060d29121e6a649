"""Disentangled attention: the equation, evaluated pair by pair, and the buckets of distances; and convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import convolution
from lmrep.layers.attention import KVCache
from lmrep.layers.disentangled_attention import Buckets, attend

B, T, H, K = 2, 7, 3, 4
RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
MASK = SEGMENTS[:, :, None] == SEGMENTS[:, None]
AT = np.array([[6, 0, 3], [1, 1, 4]])


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("buckets", [Buckets(), Buckets(7, 20), Buckets(4, 4)], ids=str)
def test_buckets(buckets):
    """Near distances have a bucket of their own, further ones share, and the last has all from the largest on."""
    exact, distances = buckets.number // 2, np.arange(-2 * buckets.max_distance, 2 * buckets.max_distance)
    found = buckets.of(distances) - buckets.number
    np.testing.assert_array_equal(found[np.abs(distances) <= exact], np.arange(-exact, exact + 1))
    assert (np.diff(found) >= 0).all() and found.min() >= -buckets.number and found.max() == buckets.number - 1
    assert (found[distances >= buckets.max_distance - 1] >= 2 * exact - 1).all()
    assert (Buckets(0, 5).of(np.arange(-7, 8)) == [0, 0, *range(10), 9, 9, 9]).all()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(256, 512), (512, 1024), (8, 20), (7, 20), (4, 6)], ids=str)
def test_buckets_are_those_of_the_library(sizes):
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distances = np.arange(-2000, 2001)
    expected = modeling.make_log_bucket_position(torch.tensor(distances), *sizes).long() + sizes[0]
    np.testing.assert_array_equal(Buckets(*sizes).of(distances), expected.clamp(0, 2 * sizes[0] - 1))


@pytest.mark.parametrize("at", [None, AT], ids=["all", "chosen"])
@pytest.mark.parametrize(("terms", "signs"), [("both", "cp"), ("c2p", "c"), ("p2c", "p")])
def test_logits_are_those_of_the_equation(terms, signs, at):
    """Gradients of the weighted sums, too, by a derivative of the equation."""
    buckets = Buckets(4, 5)
    query, keys, values, relative = draw(B, T, H, K), draw(B, T, H, K), draw(B, T, H, K), draw(buckets.rows, 6)
    params = {name: {"kernel": draw(6, H * K), "bias": draw(H * K)} for name in ("query", "key")}
    at_queries = np.broadcast_to(np.arange(T), (B, T)) if at is None else at
    example = np.arange(B)[:, None]
    weights = draw(B, at_queries.shape[1], H, K)

    def expected(query, keys, values, relative, params):
        of = buckets.of(at_queries[:, :, None] - np.arange(T))  # [b, t, s]
        rows = {name: (relative @ p["kernel"] + p["bias"]).reshape(-1, H, K)[of] for name, p in params.items()}
        chosen = query[example, at_queries]
        logits = jnp.einsum("bthk,bshk->bhts", chosen, keys)
        if "c" in signs:
            logits += jnp.einsum("bthk,btshk->bhts", chosen, rows["key"])
        if "p" in signs:
            logits += jnp.einsum("bshk,btshk->bhts", keys, rows["query"])
        logits = jnp.where(MASK[example, at_queries][:, None], logits / np.sqrt((1 + len(signs)) * K), -np.inf)
        return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(logits), values)

    def computed(query, keys, values, relative, params):
        chosen = query if at is None else query[example, at_queries]
        return attend(params, relative, jnp.asarray(MASK), H, buckets, terms)(
            chosen, KVCache(keys, values), at=None if at is None else jnp.asarray(at))[0]

    def run(f):
        with jax.default_matmul_precision("highest"):
            value, vjp = jax.vjp(f, *map(jnp.asarray, (query, keys, values, relative)), params)
            return value, vjp(jnp.asarray(weights))

    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=2e-5), run(computed), run(expected))


@pytest.mark.parametrize("width", [1, 3, 9])
def test_convolution_sums_over_the_visible_neighbours(width):
    x, params = draw(B, T, 5), {"kernel": draw(width, 5, 5), "bias": draw(5)}
    visible = MASK & (np.arange(T)[:, None] != np.arange(T) - 1)  # not the next one
    expected = np.zeros_like(x) + params["bias"]
    for t in range(T):
        for i in range(width):
            if 0 <= (s := t + i - width // 2) < T:
                expected[:, t] += visible[:, t, s, None] * (x[:, s] @ params["kernel"][i])
    np.testing.assert_allclose(convolution.apply(params, jnp.asarray(x), jnp.asarray(visible)), expected, atol=1e-4)
