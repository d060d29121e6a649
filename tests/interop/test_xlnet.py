"""What only XLNet's files have. Every test of `test_published.py` and `test_conversion.py` runs with them too."""

import dataclasses

import numpy as np
import pytest

from lmrep.interop import tensor_files
from lmrep.interop.huggingface import FAMILIES
from lmrep.interop.huggingface.read import describe, read
from lmrep.models import PRESETS
from tests.interop.test_published import GOLDEN, copy


@pytest.mark.parametrize(("preset", "sizes"), [
    ("xlnet_base", {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "d_head": 64}), ("xlnet_large", {})])
def test_published_configs_of_xlnet_equal_the_presets_but_for_memory(preset, sizes):
    """They have none, and the exact form of gelu."""
    expected = dataclasses.replace(PRESETS[preset].config, memory=0, reuse=0, activation="gelu")
    none = {"mem_len": None, "reuse_len": None, "clamp_len": -1}
    assert FAMILIES["xlnet"].network(sizes | none | {"untie_r": True}, "config.json") == expected


def test_absent_memory_and_largest_distance_of_xlnet_mean_none(tmp_path):
    """Published files have null for no memory, and -1 for no largest distance."""
    before = describe(GOLDEN / "xlnet").config
    assert (before.memory, before.reuse, before.clamp, before.untie, before.causal) == (7, 0, 6, True, False)
    found = describe(copy("xlnet", tmp_path / "x", mem_len=None, clamp_len=-1, reuse_len=4, untie_r=True)).config
    assert found == dataclasses.replace(before, memory=0, reuse=4, clamp=0)


def test_projections_are_those_of_each_head():
    """In the published equations of the layer: queries x q, output vectors o."""
    checkpoint, (tensors, _) = read(GOLDEN / "xlnet"), tensor_files.read(GOLDEN / "xlnet" / "model.safetensors")
    x = np.random.default_rng(0).normal(size=(5, 18)).astype(np.float32)
    kernels = {name: checkpoint.params[f"encoder/layers/attention/{name}/kernel"][1] for name in ("query", "output")}
    queries = np.einsum("td,dhk->thk", x, tensors["transformer.layer.1.rel_attn.q"])
    np.testing.assert_allclose(x @ kernels["query"], queries.reshape(5, -1), rtol=1e-5, atol=1e-6)
    output = np.einsum("thk,dhk->td", queries, tensors["transformer.layer.1.rel_attn.o"])
    np.testing.assert_allclose(queries.reshape(5, -1) @ kernels["output"], output, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(checkpoint.params["encoder/query"], tensors["transformer.mask_emb"][0, 0])


SIZES = {"vocab": 31, "width": 12, "layers": 2, "heads": 2, "mlp": 20}
