"""`lmrep doctor` on the machine: devices, memory, disks."""

import shlex
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from lmrep import doctor
from lmrep.core import host
from lmrep.core.errors import UserError
from lmrep.doctor import machine
from lmrep.experiment import config as experiments
from lmrep.planning import hardware, plan, table
from tests import small
from tests.doctor import examined, failed

# Address space


@pytest.mark.parametrize("command", [
    "train", pytest.param("doctor", marks=pytest.mark.slow), "inspect"])
def test_small_address_space_is_refused_in_one_message(home, tmp_path, command):
    """JAX would hang or abort in it."""
    words = [f"--config={small.experiment_file(tmp_path, home / 'texts')}", f"--workdir={tmp_path / 'run'}"]
    limit = f"ulimit -v 2000000; exec {shlex.quote(sys.executable)} -m lmrep {command} {shlex.join(words)}"
    result = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, timeout=small.SECONDS,
                          cwd=Path(__file__).parents[2])
    assert result.returncode == 2 and not (tmp_path / "run").exists()
    assert "2.0 GB of address space" in result.stdout + result.stderr and "Traceback" not in result.stderr


# The mesh


def test_mesh_of_devices_of_other_machines_is_checked(config, tmp_path):
    config.mesh.update({"data": 4, "fsdp": 4})
    found = examined(config, tmp_path / "run", tmp_path, devices=16, processes=2)
    assert not failed(found) and "4 x 4 x 1 on 16 x cpu, of which 8 are here" in found["mesh"].text
    found = examined(config, tmp_path / "run", tmp_path, devices=32, processes=2)
    assert "2 processes have 32; use all of them" in failed(found)["mesh"]


def test_float32_on_accelerators_is_a_warning(config, monkeypatch):
    experiment = experiments.parse(config)
    assert machine.mesh(8, 1, experiment, None).mark == doctor.OK
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")])
    result = machine.mesh(8, 1, experiment, None)
    assert result.mark == doctor.WARNING and "execution.dtype=bfloat16" in result.text and result.value.size == 8


@pytest.mark.parametrize(("platforms", "found", "sign", "outcome"), [
    ("cpu", "cpu", "/usr/bin/nvidia-smi", ""), ("", "cpu", None, ""), ("cuda,cpu", "gpu", "/usr/bin/nvidia-smi", ""),
    ("", "gpu", "/usr/bin/nvidia-smi", ""), ("tpu,cpu", "tpu", None, ""),
    ("", "cpu", "/usr/bin/nvidia-smi", "seems to have accelerators (/usr/bin/nvidia-smi)"),
    ("cuda,cpu", "cpu", "/usr/bin/nvidia-smi", UserError), ("cuda", AssertionError(), None, UserError),
    ("tpu,cpu", RuntimeError("Unable to initialize backend 'tpu': no libtpu.so (set JAX_PLATFORMS='')"), None,
     UserError)])
def test_a_run_computes_on_the_accelerators_or_says_that_it_does_not(monkeypatch, caplog, platforms, found, sign,
                                                                     outcome):
    def default_backend():
        if isinstance(found, Exception):
            raise found
        return found

    before = jax.config.jax_platforms
    monkeypatch.setattr(jax, "default_backend", default_backend)
    monkeypatch.setattr(shutil, "which", lambda name: sign)
    monkeypatch.setattr(host, "ACCELERATORS", ())
    jax.config.update("jax_platforms", platforms or None)
    try:
        if outcome is UserError:
            with pytest.raises(UserError, match=f"JAX_PLATFORMS is {platforms}, and JAX sees no such device"):
                host.check_backend.__wrapped__()
            return
        host.check_backend.__wrapped__()
        result = machine.platform()
    finally:
        jax.config.update("jax_platforms", before)
    assert outcome in caplog.text and outcome in result.text and (result.mark == doctor.WARNING) == bool(outcome)
    assert bool(caplog.records) == bool(outcome)


def test_parameters_that_the_mesh_does_not_shard_are_a_warning(config, tmp_path):
    config.mesh.update({"tensor": 2})
    config.model.vocab = 201
    found = examined(config, tmp_path / "run", tmp_path)
    assert found["network"].mark == doctor.WARNING and "(201, 32)" in found["network"].text
    config.model.vocab = 202
    assert examined(config, tmp_path / "run", tmp_path)["network"].mark == doctor.OK


# Disk and memory


def test_full_disk_fails(config, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 5000, 5000))
    message = failed(examined(config, tmp_path / "run", tmp_path / "data"))
    assert message.keys() == {"checkpoints", "data"}
    for name, flag in (("checkpoints", "--workdir"), ("data", "--data_dir")):
        assert f"B more in {tmp_path}" in message[name] and "where 5 kB are free" in message[name]
        assert flag in message[name]


def test_stores_and_checkpoints_on_one_disk_are_added(config, tmp_path, monkeypatch):
    """Either alone fits."""
    check = machine.checkpoints
    usage = namedtuple("usage", "total used free")
    results = []
    monkeypatch.setattr(machine, "checkpoints", lambda *arguments: results.append(check(*arguments)) or results[-1])
    examined(config, tmp_path / "run", tmp_path / "data")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, sum(results[0].value.values()) + 100))
    assert failed(examined(config, tmp_path / "run", tmp_path / "data")).keys() == {"data"}


def byte_number(text: str) -> float:
    """The number of bytes that a text begins with: 1.5 MB."""
    number, unit = text.replace(",", " ").split()[:2]
    return float(number) * {"kB": 1e3, "MB": 1e6}[unit]


def test_estimate_of_checkpoints_matches_their_size(home, config, tmp_path):
    found = examined(config, home / "run", home / "data")
    [path] = [path for path in (home / "run/checkpoints").iterdir() if path.name == "12"]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    estimate = byte_number(found["checkpoints"].text.split(" of ")[1])
    assert estimate <= size <= 1.5 * estimate
    config.checkpoint.keep, config.checkpoint.keep_best = 2, 3
    text = examined(config, tmp_path / "run", home / "data")["checkpoints"].text
    assert text.startswith("up to 6 checkpoints of ")  # one is being saved
    assert byte_number(text.split("need ")[1]) == pytest.approx(6 * estimate, rel=0.05)


def test_too_little_memory_fails(config, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 10**5)
    message = failed(examined(config, tmp_path / "run", tmp_path))["memory"]
    assert "100 kB" in message and "activations are not counted" in message and "mesh.fsdp" in message


def test_memory_of_an_accelerator_is_compared_with_the_state(config, tmp_path, monkeypatch):
    device = SimpleNamespace(platform="gpu", device_kind="H1", memory_stats=lambda: {"bytes_limit": limit})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for limit, mark in ((10**5, doctor.FAILED), (5 * 10**5, doctor.WARNING), (10**9, doctor.OK)):  # noqa: B007
        found = examined(config, None, tmp_path)["memory"]
        assert found.mark == mark and "each H1 has" in found.text


def test_sharding_reduces_memory_per_device(config, tmp_path):
    def needed(**axes) -> float:
        config.mesh.update({"data": 1, **axes})
        found = examined(config, tmp_path / "run", tmp_path)
        parameters = int(found["network"].text.split()[0].replace(",", ""))
        return byte_number(found["memory"].text.split("take ")[1]) / parameters

    whole = needed(fsdp=1)
    assert whole == pytest.approx(4 * 4, rel=0.05)  # gradients and two moments beside parameters, in float32
    assert needed(fsdp=8) < 0.2 * whole


@pytest.mark.slow
def test_memory_and_time_of_the_compiled_step(config, tmp_path, monkeypatch):
    plans, make = [], plan.plan
    monkeypatch.setattr(plan, "plan", lambda *arguments: plans.extend(make(*arguments)) or plans)
    monkeypatch.setattr(hardware, "available_memory", lambda: 3 * 10**6)
    monkeypatch.setattr(hardware.accelerators, "known", lambda kind: hardware.accelerators.Chip("a chip", flops=1e9))
    state = examined(config, None, tmp_path)["memory"].text
    step = failed(examined(config, None, tmp_path, compiling=True))["memory"]
    assert "activations are not counted" in state and "activations" in step and "not counted" not in step
    assert byte_number(step.split("takes ")[1]) > byte_number(state.split("take ")[1]) and "execution.remat" in step
    seconds = sum(each.steps * each.flops for each in plans) / 8e9
    assert f"at least {table.hours(seconds / 3600)}" in step


def test_memory_of_hardware_that_is_not_here(config, tmp_path, monkeypatch):
    config.mesh.update({"data": 1, "fsdp": -1})

    def checked(limit):
        chip = hardware.accelerators.ACCELERATORS["H200"]._replace(memory=limit)
        monkeypatch.setattr(hardware, "find", lambda name: hardware.Hardware(name, chip, jax.devices()[:8], note="So."))
        return examined(config, None, tmp_path, topology="h200:8")

    found = checked(10**9)
    assert not failed(found) and found["topology"].text == "8 x NVIDIA H200 (h200:8). So"
    assert "1 x 8 x 1 on 8 x NVIDIA H200" in found["mesh"].text and found["mesh"].mark == doctor.WARNING  # float32
    assert "each NVIDIA H200 has 1 GB" in found["memory"].text
    assert "each NVIDIA H200 has 10 kB" in failed(checked(10**4))["memory"]


def test_hardware_that_does_not_exist(config, tmp_path):
    found = examined(config, None, tmp_path, topology="h100")
    assert list(found) == ["address space", "topology"] and "h100:8" in failed(found)["topology"]
