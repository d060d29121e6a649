"""Energy: counters that wrap, RAPL's files, NVML through a stand-in for its library."""

import time
from types import SimpleNamespace

import pytest

from lmrep.planning import energy
from lmrep.planning.energy import Counters, Meter, energy_counter, power_integral


def values(*numbers):
    return iter(numbers).__next__


def test_a_counter_that_wraps():
    counter = energy_counter(values(900, 950, 20, 30), 1e-3, limit=1000)
    assert [round(counter(), 6) for _ in range(3)] == [0.05, 0.12, 0.13]


def test_a_counter_that_starts_again_at_zero():
    counter = energy_counter(values(900, 950, 20), 1.0)
    assert [counter(), counter()] == [50, 70]


def test_the_integral_of_a_power():
    counter = power_integral(values(100.0, 200.0, 200.0), values(0.0, 2.0, 5.0))
    assert [counter(), counter()] == [300, 900]


def zone(root, name, label, energy_uj, limit=10**6):
    folder = root / name
    folder.mkdir(parents=True)
    for file, content in (("name", label), ("energy_uj", energy_uj), ("max_energy_range_uj", limit)):
        (folder / file).write_text(f"{content}\n")
    return folder


def test_rapl_adds_packages_and_memory_and_leaves_out_what_they_contain(tmp_path):
    folders = [zone(tmp_path, f"intel-rapl:{name}", label, 100) for name, label in (
        ("0", "package-0"), ("1", "package-1"), ("0:0", "core"), ("0:1", "dram"), ("2", "psys"))]
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 100)
    found = energy.rapl(tmp_path)
    assert {name: len(counters) for name, counters in found.counters.items()} == {"cpu": 2, "memory": 1}
    for folder, value in zip(folders, (600, 50, 10**5, 400, 10**6), strict=True):  # the second one has wrapped
        (folder / "energy_uj").write_text(str(value))
    with Meter(found, interval=1000) as meter:
        assert meter.joules() == pytest.approx({"cpu": (500 + 10**6 - 50) * 1e-6, "memory": 300e-6})
    assert meter.sources == {"cpu": "RAPL", "memory": "RAPL"} and not meter.missing


def test_without_rapl_the_reason_is_known(tmp_path):
    assert str(tmp_path) in energy.rapl(tmp_path).missing["cpu"]
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    (folder / "energy_uj").unlink()
    (folder / "energy_uj").mkdir()
    found = energy.rapl(tmp_path)
    assert not found.counters and str(folder) in found.missing["cpu"]


class NVMLError(Exception):
    pass


def library(counter=True):
    """A stand-in for pynvml: GPU i has taken i kJ, then 1 J more at each reading, and draws i hundred watts."""
    reads = {}

    def total(handle):
        if not counter:
            raise NVMLError("Not Supported")
        reads[handle] = reads.get(handle, 10**6 * handle) + 1000
        return reads[handle]

    return SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetHandleByUUID={"GPU-a": 7}.__getitem__, nvmlDeviceGetTotalEnergyConsumption=total,
        nvmlDeviceGetPowerUsage=lambda handle: 10**5 * handle)


def test_nvml_counts_energy():
    found = energy.nvml([0, 1], {}, library())
    assert found.sources == {"accelerators": "NVML"}
    assert Meter(found).joules() == {"accelerators": pytest.approx(2.0)}


def test_nvml_integrates_power_where_it_has_no_energy():
    found = energy.nvml([1, 2], {}, library(counter=False))
    assert "power" in found.sources["accelerators"]
    first, second = found.counters["accelerators"]
    assert 0 < first() < second()


@pytest.mark.parametrize(("visible", "handles"), [("", [0, 1]), ("3,5", [3, 5]), ("GPU-a, 2", [7, 2])])
def test_gpus_are_those_that_the_process_sees(visible, handles):
    fake, seen = library(), []
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda handle: seen.append(handle) or 0
    energy.nvml([0, 1], {"CUDA_VISIBLE_DEVICES": visible}, fake)
    assert seen == handles


def test_without_nvml_the_reason_is_known():
    def fail():
        raise NVMLError("Driver Not Loaded")

    broken = library()
    broken.nvmlInit = fail
    assert energy.nvml([0], {}, broken).missing == {"accelerators": "NVML: Driver Not Loaded"}


def test_a_counter_that_fails_ends_its_component_alone(caplog):
    found = Counters({"cpu": [energy_counter(values(0, 5), 1.0)], "memory": [energy_counter(values(0, 3, 6), 1.0)]},
                     {"cpu": "RAPL", "memory": "RAPL"}, {})
    meter = Meter(found)
    assert meter.joules() == {"cpu": 5, "memory": 3}
    assert meter.joules() == {"memory": 6} and "cpu" in meter.missing
    assert "cpu can no longer be read" in caplog.text


def test_the_thread_samples_and_ends():
    class Ticks:
        number = 0

        def __call__(self):
            self.number += 1
            return self.number

    ticks, deadline = Ticks(), time.monotonic() + 60
    with Meter(Counters({"cpu": [ticks]}, {"cpu": "test"}, {}), interval=0.001) as meter:
        while ticks.number < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert ticks.number >= 5 and not meter._thread.is_alive()
