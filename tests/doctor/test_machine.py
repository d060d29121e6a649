"""What `lmrep doctor` finds of the machine: devices, memory, disks."""

import shutil
from collections import namedtuple
from types import SimpleNamespace

import jax
import pytest

from lmrep import doctor
from lmrep.doctor import machine
from tests.doctor import examined, failed

# The mesh


@pytest.mark.parametrize(("axes", "said"), [
    ({"data": 16}, "16, fsdp=1, tensor=1, and there are 8"), ({"data": 3}, "make batch_size a multiple of 3"),
    ({"data": 1, "tensor": 3}, "has 4 heads, which mesh.tensor=3 does not divide")])
def test_a_mesh_that_does_not_divide(config, tmp_path, axes, said):
    config.mesh.update(axes)
    found = examined(config, tmp_path / "run", tmp_path)
    assert said in failed(found)["mesh"] and failed(found).keys() == {"mesh"}
    assert found["memory"].mark == doctor.SKIPPED and found["checkpoints"].mark == doctor.OK


def test_a_mesh_of_devices_that_are_elsewhere(config, tmp_path):
    config.mesh.update({"data": 4, "fsdp": 4})
    found = examined(config, tmp_path / "run", tmp_path, devices=16, processes=2)
    assert not failed(found) and "4 x 4 x 1 on 16 x cpu, of which 8 are here" in found["mesh"].text
    found = examined(config, tmp_path / "run", tmp_path, devices=32, processes=2)
    assert "2 processes have 32; use all of them" in failed(found)["mesh"]


def test_parameters_that_the_mesh_leaves_whole(config, tmp_path):
    config.mesh.update({"tensor": 2})
    config.model.vocab = 201
    found = examined(config, tmp_path / "run", tmp_path)
    assert found["network"].mark == doctor.WARNING and "(201, 32)" in found["network"].text
    config.model.vocab = 202
    assert examined(config, tmp_path / "run", tmp_path)["network"].mark == doctor.OK


# Room


def test_disks_that_are_too_small(config, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**6, 10**6 - 5000, 5000))
    said = failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert said.keys() == {"checkpoints", "data"}
    for name, flag in (("checkpoints", "--workdir"), ("data", "--data_dir")):
        assert f"GB more in {tmp_path}" in said[name] and "5e-06 GB are free" in said[name] and flag in said[name]


def test_stores_and_checkpoints_share_a_disk(config, tmp_path, monkeypatch):
    """There is room for either."""
    needed = machine.checkpoints
    usage = namedtuple("usage", "total used free")
    seen = []
    monkeypatch.setattr(machine, "checkpoints", lambda *given: seen.append(needed(*given)) or seen[-1])
    examined(config, tmp_path / "run", tmp_path / "data")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, seen[0].value.bytes + 100))
    assert failed(examined(config, tmp_path / "run", tmp_path / "data")).keys() == {"data"}


def test_what_checkpoints_are_said_to_need_is_what_they_take(home, config):
    found = examined(config, home / "run", home / "data")
    [path] = [path for path in (home / "run/checkpoints").iterdir() if path.name == "12"]
    taken = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    said = float(found["checkpoints"].text.split(" of ")[1].split(" GB")[0]) * 1e9
    assert said <= taken <= 1.5 * said


def test_memory_that_is_too_small(config, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: 10**5)
    said = failed(examined(config, tmp_path / "run", tmp_path))["memory"]
    assert "0.0001 GB" in said and "activations are not counted" in said and "mesh.fsdp" in said


def test_memory_of_an_accelerator_that_is_too_small_or_hardly_enough(config, tmp_path, monkeypatch):
    device = SimpleNamespace(platform="gpu", device_kind="H1", memory_stats=lambda: {"bytes_limit": limit})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for limit, mark in ((10**5, doctor.FAILED), (5 * 10**5, doctor.WARNING), (10**9, doctor.OK)):  # noqa: B007
        found = examined(config, None, tmp_path)["memory"]
        assert found.mark == mark and "each H1 has" in found.text


def test_cutting_parameters_makes_them_smaller_on_each_device(config, tmp_path):
    def needed(**axes) -> float:
        config.mesh.update({"data": 1, **axes})
        return float(examined(config, tmp_path / "run", tmp_path)["memory"].text.split("take ")[1].split(" GB")[0])

    assert needed(fsdp=8) < 0.2 * needed(fsdp=1)
