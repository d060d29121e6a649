"""The bandwidth between chips of slices and hosts that are not here, and the GPUs that a plan can be made for."""

from types import SimpleNamespace

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.sharding import slice_of
from lmrep.planning import accelerators, cuda, hardware


def links(version, shape, group, slices=1):
    """The fraction of a chip's links that collectives within a group of chips use; coordinates run row by row."""
    order = [SimpleNamespace(coords=(*point, 0), slice_index=number)
             for number in range(slices) for point in np.ndindex(*shape)]
    chip = accelerators.ACCELERATORS[accelerators.TPUS[version]]
    there = hardware.Hardware("", chip, order, slices)
    return there.speed(np.array([group]), order) / chip.interconnect


@pytest.mark.parametrize(("version", "shape", "group", "expected"), [
    ("v5e", (4, 4), range(4), 0.25),  # a line: half of the links of one of two dimensions
    ("v5e", (4, 4), range(0, 16, 4), 0.25), ("v5e", (4, 4), range(16), 0.5),
    ("v5e", (16, 16), range(16), 0.5),  # a ring, whose ends are joined
    ("v5e", (16, 16), range(256), 1.0), ("v5e", (4, 4), [0, 5, 10, 15], 0.25),  # a diagonal is no block
    ("v5p", (4, 4, 4), range(4), 1 / 3), ("v5p", (2, 2, 2), range(8), 0.5),
])
def test_a_group_uses_the_links_of_its_dimensions(version, shape, group, expected):
    assert links(version, shape, list(group)) == pytest.approx(expected)


def test_slices_are_joined_by_the_slow_network():
    chip = accelerators.ACCELERATORS["TPU v5e"]
    assert links("v5e", (2, 2), [0, 4], slices=2) == chip.network / chip.interconnect
    assert links("v5e", (2, 2), [0, 1], slices=2) == 0.25


@pytest.mark.parametrize(("name", "hosts", "group", "expected"), [
    ("h100:8", 1, range(8), 450e9),  # NVLink
    ("h100:4x8", 4, range(8), 450e9),
    ("h100:4x8", 4, range(32), 400e9),  # eight network cards of 50 GB/s carry a ring each
    ("h100:4x8", 4, range(0, 32, 8), 50e9),  # one GPU of each host
    ("h100:4x8", 4, range(0, 32, 4), 100e9), ("h200:3x8", 3, range(24), 400e9),
    ("a100-80gb:2x8", 2, range(16), 200e9), ("l40s:2x8", 2, range(16), 32e9), ("l40s:2x8", 2, [0, 8], 6.25e9),
    ("rtx4090:4", 1, range(4), 32e9),
])
def test_gpus_send_over_the_links_of_a_host_and_the_network_between_hosts(name, hosts, group, expected):
    version, _, shape = name.partition(":")
    count = int(np.prod([int(n) for n in shape.split("x")]))
    order = [SimpleNamespace(id=i) for i in range(count)]
    chip = accelerators.ACCELERATORS[accelerators.GPUS[version]]
    there = hardware.Hardware(name, chip, order, hosts=hosts)
    assert there.speed(np.array([list(group)]), order) == pytest.approx(expected)


def test_hosts_of_gpus_are_no_slices():
    """JAX numbers them in the same attribute; a mesh may shard parameters over them."""
    assert slice_of(SimpleNamespace(platform="gpu", slice_index=1)) == 0
    assert slice_of(SimpleNamespace(platform="tpu", slice_index=1)) == 1


def test_every_gpu_has_all_numbers():
    assert cuda.TARGETS.keys() == accelerators.GPUS.keys()
    for kind in accelerators.GPUS.values():
        chip = accelerators.known(f"NVIDIA {kind}")
        assert chip is accelerators.ACCELERATORS[kind] and None not in chip


@pytest.fixture
def no_plugin(monkeypatch):
    """JAX's CUDA plugin is not installed."""
    def devices(*_):
        raise NotImplementedError

    monkeypatch.setattr(cuda, "devices", devices)
    for variable in hardware.FRACTIONS:
        monkeypatch.delenv(variable, raising=False)


def test_without_the_plugin_the_cpu_compiles(no_plugin, monkeypatch):
    """Three quarters of a GPU's memory is what JAX allocates; a variable changes that."""
    found = hardware.find("h100:2x4")
    assert (len(found.devices), found.hosts, found.chip.flops) == (8, 2, 989e12)
    assert [found.part_of(device) for device in found.devices] == [0] * 4 + [1] * 4
    assert found.chip.memory == 0.75 * 84_942_979_072
    assert "devices of the CPU" in found.note and "estimates" in found.note and "plan_gpu" in found.note
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
    assert hardware.find("h100:1").chip.memory == 0.9 * 84_942_979_072
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(UserError, match="XLA_CLIENT_MEM_FRACTION is 'most'"):
        hardware.find("h100:1")


def test_the_plugin_compiles_for_the_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "devices", lambda version, hosts, count: [f"{version} {hosts} {count}"])
    found = hardware.find("a100-40gb:3x8")
    assert found.devices == ["a100-40gb 3 8"] and "compiled for the GPU" in found.note


def test_the_description_of_a_gpu_has_its_numbers(monkeypatch):
    """What JAX is given: XLA's text of the GPU, and hosts and GPUs."""
    asked = {}
    monkeypatch.setattr(cuda.topologies, "get_topology_desc",
                        lambda **options: asked.update(options) or SimpleNamespace(devices=[1, 2]))
    assert cuda.devices("l40s", 2, 4) == [1, 2]
    assert asked["platform"] == "cuda" and asked["topology"] == "1x2x4"
    for line in ("core_count: 142", "{ major: 8 minor: 9 }", "memory_bandwidth: 864000000000",
                 "shared_memory_per_block_optin: 101376"):
        assert line in asked["target_config"]
