"""Published numbers of accelerators, by what JAX calls them."""

import pytest

from lmrep.planning import accelerators


@pytest.mark.parametrize(("kind", "watts", "teraflops"), [
    ("NVIDIA H200", 700, 989), ("NVIDIA H200 NVL", 600, 835), ("NVIDIA GH200 480GB", None, 989),
    ("NVIDIA H100 80GB HBM3", 700, 989), ("NVIDIA H100 PCIe", 350, 756), ("NVIDIA H100 NVL", 400, 835),
    ("NVIDIA A100-SXM4-40GB", 400, 312), ("NVIDIA A100-SXM4-80GB", 400, 312), ("NVIDIA A100-PCIE-40GB", 250, 312),
    ("NVIDIA A100 80GB PCIe", 300, 312), ("NVIDIA L40S", 350, 362), ("NVIDIA L40", 300, 181), ("NVIDIA L4", 72, 121),
    ("NVIDIA A10G", 300, 70), ("NVIDIA A10", 150, 125), ("Tesla T4", 70, None), ("Tesla V100-SXM2-16GB", 300, None),
    ("Tesla V100-PCIE-32GB", 250, None), ("Tesla V100S-PCIE-32GB", 250, None), ("Tesla P100-SXM2-16GB", 300, None),
    ("Tesla P100-PCIE-16GB", 250, None), ("TPU v3", 110, 61.5), ("TPU v4", 170, 275), ("TPU v5 lite", None, 197),
    ("TPU v5p", None, 459), ("TPU v5", None, 459), ("TPU v6 lite", None, 918),
    ("NVIDIA GeForce RTX 4090", 450, 165.2), ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
])
def test_known_accelerators(kind, watts, teraflops):
    """A v5p reports "TPU v5", a v5e "TPU v5 lite"."""
    found = accelerators.known(kind)
    assert (found.watts, found.flops) == (watts, teraflops and pytest.approx(teraflops * 1e12))


@pytest.mark.parametrize("kind", [
    "NVIDIA RTX A1000", "Quadro P1000", "NVIDIA T400 4GB", "NVIDIA T1000", "NVIDIA H20", "NVIDIA H100 64GB HBM2e",
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "TPU v4i", "TPU7x", "cpu",
])
def test_a_longer_name_or_a_part_of_a_gpu_is_not_known(kind):
    assert accelerators.known(kind) == accelerators.UNKNOWN
