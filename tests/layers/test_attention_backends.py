"""What implementations of attention honour, the choice among them, and those of accelerators as far as a CPU goes."""

import re
from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from lmrep.core.errors import UserError
from lmrep.core.sharding import make_mesh, use_mesh
from lmrep.layers import attention, fused_attention
from lmrep.layers import attention_backends as backends
from lmrep.layers.attention import AttentionMask, KVCache
from lmrep.layers.attention_backends import ATTENTION, FASTER, Needs
from tests.cases import slow_after

EASY = Needs(64, dtype="bfloat16", length=4096, packed=False)  # what every backend honours
RNG = np.random.default_rng(0)


def gradients(make, segments, causal, arrays, window=0):
    """(output, gradients by queries, keys and values of its sum over real positions with the fourth array)."""
    real = (segments > 0)[..., None, None]

    def loss(query, keys, values):
        mask = AttentionMask(jnp.asarray(segments), causal, window=window)
        output, _ = make(mask)(query, KVCache(keys, values))
        return jnp.where(real, output * arrays[3], 0).sum(), output

    grads, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays[:3])
    return np.where(real, output, 0), *grads


def dense(mask):
    return attention.dense(mask.to_bool())


def arrays(b, t, h, k):
    return RNG.normal(size=(4, b, t, h, k)).astype(np.float32)


# The choice


@pytest.mark.parametrize(("name", "needs", "message"), [
    ("cudnn", {"packed": True}, "does not keep several texts in an example apart: set config.format"),
    ("cudnn", {"dropout": True}, "has no dropout .*: set model.attention_dropout=0"),
    ("cudnn", {"dtype": "float32"}, "computes in bfloat16 only: set execution.dtype=bfloat16"),
    ("cudnn", {"head_width": 100}, "multiple of 8 and at most 128, not 100: set model.heads or model.width"),
    ("cudnn", {"head_width": 256}, "at most 128, not 256"),
    ("cudnn", {"mask": True}, "takes no mask"),
    ("cudnn", {"capped": True}, "has no soft cap on attention logits: set model.attention_cap=0"),
    ("splash", {"dropout": True}, "set model.attention_dropout=0"),
    ("splash", {"mask": True}, "takes no mask"),
])
def test_what_is_not_honoured_is_refused_and_ruled_out(name, needs, message):
    needs, [platform] = EASY._replace(**needs), ATTENTION[name].platforms
    with pytest.raises(UserError, match=rf"execution.attention is {name}, which .*{message}.*set execution.attention "
                       "to auto, xla, chunked"):
        backends.resolve(name, needs, platform)
    choice = backends.resolve("auto", needs, platform)
    assert choice.name in ("xla", "chunked")
    assert message.split(".*")[0].split(":")[0] in choice.ruled_out[name]


@pytest.mark.parametrize(("name", "platform"), [
    ("cudnn", "cpu"), ("cudnn", "tpu"), ("splash", "cpu"), ("splash", "gpu")])
def test_a_backend_of_another_platform_is_refused(name, platform):
    with pytest.raises(UserError, match=f"which runs on {ATTENTION[name].platforms[0]}, not on {platform}; or set"):
        backends.resolve(name, EASY, platform)
    assert backends.resolve(name, EASY, None).name == name  # where it is not known yet


@pytest.mark.parametrize("platform", FASTER)
def test_auto_takes_the_fastest_from_its_length_on(platform):
    (fastest, length), *_ = FASTER[platform]
    assert backends.resolve("auto", EASY._replace(length=length), platform) == (fastest, {})
    assert backends.resolve("auto", EASY._replace(length=length - 1), platform) == ("xla", {})


@pytest.mark.parametrize("name", backends.EVERYWHERE)
def test_what_runs_everywhere_honours_everything(name):
    needs = Needs(7, dtype="float32", length=10**6, packed=True, causal=True, mask=True, dropout=True,
                  capped=True)
    for platform in FASTER:
        assert not backends.reasons(name, needs, platform)


def test_binding_refuses_dropout():
    mask = AttentionMask(jnp.ones((1, 8), jnp.int32))
    with pytest.raises(UserError, match=r"set model\.attention_dropout=0"):
        backends.bind("splash", mask, head_width=64, dtype="float32", dropout=True)


@pytest.mark.parametrize("make", [fused_attention.cudnn, fused_attention.splash])
def test_fused_kernels_themselves_refuse_masks_and_dropout(make):
    segments, (x, *_) = jnp.ones((1, 8), jnp.int32), arrays(1, 8, 1, 8)
    with pytest.raises(ValueError, match="takes no mask beside"):
        make(AttentionMask(segments, mask=jnp.ones((1, 8, 8), bool)))
    with pytest.raises(ValueError, match="dropout"):
        make(AttentionMask(segments))(x, KVCache(x, x), rate=0.1, key=jax.random.key(0))


@pytest.mark.parametrize(("name", "causal", "chosen"), [
    ("cudnn", True, "cudnn"), ("cudnn", False, "local"), ("splash", False, "splash"), ("chunked", True, "local"),
    ("auto", True, "local"), ("xla", True, "xla")])
def test_windows_go_to_backends_that_take_them(name, causal, chosen, monkeypatch):
    monkeypatch.setattr(backends.local_attention, "attend", lambda mask, cap: "local")
    for other, backend in ATTENTION.items():
        monkeypatch.setitem(ATTENTION, other, backend._replace(attend=lambda mask, other=other: other))
    mask = AttentionMask(jnp.ones((1, 8), jnp.int32), causal, window=2)
    bind = partial(backends.bind, name, mask, head_width=64, dtype="bfloat16", dropout=False)
    assert bind() == chosen
    with backends.only_dense():
        assert bind() == ("xla" if name == "xla" else "local")


@pytest.mark.parametrize("make", [fused_attention.cudnn, fused_attention.splash])
def test_fused_kernels_leave_chosen_positions_under_a_window_to_local_attention(make):
    segments, (x, *_), at = jnp.ones((1, 12), jnp.int32), arrays(1, 12, 1, 8), jnp.array([[0, 7, 11]])
    mask, query = AttentionMask(segments, causal=True, window=2), x[:, at[0]]
    np.testing.assert_array_equal(*(attend(query, KVCache(x, x), at=at)[0] for attend in (make(mask), dense(mask))))


# cuDNN


def test_cudnn_refuses_a_window_to_both_sides():
    with pytest.raises(ValueError, match="a window under a causal mask only"):
        fused_attention.cudnn(AttentionMask(jnp.ones((1, 8), jnp.int32), window=2))


@pytest.fixture
def without_cudnn(monkeypatch):
    """JAX's own implementation in place of cuDNN's, which takes the same arguments."""
    plain = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *args, implementation, **more: plain(*args, **more))


@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 1), (True, 4)])
def test_cudnn_is_given_what_the_mask_means(causal, window, without_cudnn):
    segments, x = (np.arange(12) < np.array([[12], [7], [1], [0]])).astype(np.int32), arrays(4, 12, 2, 8)
    computed, expected = (gradients(make, segments, causal, x, window) for make in (fused_attention.cudnn, dense))
    for a, b in zip(computed, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("example", [[1, 1, 2, 2], [0, 1, 1, 0], [2, 2, 2, 0]], ids=str)
def test_examples_that_cudnn_would_mix_up_give_nan(example, without_cudnn):
    segments, (x, *_) = np.array([[1, 1, 1, 0], example]), arrays(2, 4, 1, 8)
    output = np.asarray(jax.jit(lambda segments: fused_attention.cudnn(AttentionMask(segments))(x, KVCache(x, x))[0])(
        segments))
    assert np.isfinite(output[0]).all() and np.isnan(output[1]).all()


@pytest.mark.parametrize(("shape", "causal", "window"), [
    ((16, 512, 12, 64), False, 0), ((8, 1024, 12, 64), True, 0), ((8, 1024, 12, 64), True, 64)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_cudnn_is_lowered_for_cuda(shape, causal, window, sizes, monkeypatch):
    """BERT-base's and GPT-2's shapes, forward and backward: a device has its shard, and there is no mask tensor."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91100)
    x, segments = jax.ShapeDtypeStruct(shape, jnp.bfloat16), jax.ShapeDtypeStruct(shape[:2], jnp.int32)

    def loss(query, keys, values, segments):
        mask = AttentionMask(segments, causal, window=window)
        return fused_attention.cudnn(mask)(query, KVCache(keys, values))[0].astype(jnp.float32).sum()

    with use_mesh(make_mesh(*sizes)):
        text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(x, x, x, segments).lower(
            lowering_platforms=("cuda",)).as_text()
    assert [text.count(f"custom_call @__cudnn${name}(") for name in ("fmhaSoftmax", "fmhaSoftmaxBackward")] == [1, 1]
    assert ("PADDING_CAUSAL" in text) == causal
    # cuDNN counts the query's own position
    assert re.findall(r"sliding_window_length\\22: (\d+)", text) == [str(window and window + 1)] * 2
    b, t, h, _ = shape
    assert f"{b // (sizes[0] * sizes[1])}x{h // sizes[2]}x{t}xf32" in text  # the sums of exponentials of a shard
    assert f"{t}x{t}" not in text


# Splash attention


@pytest.mark.parametrize(("causal", "cap", "window"), slow_after(
    1, [(True, 0.0, 0), (False, 0.0, 0), (True, 0.7, 0), (False, 0.0, 5), (True, 0.7, 1)]))
def test_splash_attention_equals_dense_attention(causal, cap, window):
    """In the interpreter, with packed segments, padding, a narrow head and a length that blocks do not divide."""
    length = 300 if window else 140
    segments, x = np.sort(RNG.integers(1, 4, (2, length)), axis=1).astype(np.int32), arrays(2, length, 1, 16)
    segments[1, 100:] = 0
    computed = gradients(partial(fused_attention.splash, interpret=True, cap=cap), segments, causal, x, window)
    expected = gradients(lambda mask: attention.dense(mask.to_bool(), cap=cap), segments, causal, x, window)
    for a, b in zip(computed, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.skipif(find_spec("libtpu") is None, reason="compiles for TPUs, which needs libtpu")
@pytest.mark.parametrize(("shape", "causal"), [((16, 512, 12, 64), False), ((8, 1024, 12, 64), True)], ids=str)
def test_splash_attention_is_compiled_for_tpus(shape, causal, monkeypatch, no_compilation_cache):
    """BERT-base's and GPT-2's shapes, forward and backward, on four TPU v5e chips."""
    for name, value in {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
        monkeypatch.setenv(name, value)
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh = make_mesh(2, 1, 2, devices=list(devices))
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("data", None, "tensor")))
    segments = jax.ShapeDtypeStruct(shape[:2], jnp.int32, sharding=NamedSharding(mesh, PartitionSpec("data")))

    def loss(query, keys, values, segments):
        mask = AttentionMask(segments, causal)
        attend = backends.bind("auto", mask, head_width=shape[-1], dtype="bfloat16", dropout=False)
        return attend(query, KVCache(keys, values))[0].astype(jnp.float32).sum()

    with use_mesh(mesh):  # `auto` goes by the mesh's devices
        text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x, segments).compile().as_text()
    assert text.count("tpu_custom_call") >= 3  # forward, and two kernels backward
