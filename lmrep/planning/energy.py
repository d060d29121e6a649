"""The energy that this host's processors, memory and accelerators take, where their counters can be read: of NVIDIA
GPUs by NVML (the package nvidia-ml-py), of CPUs and memory by RAPL, which Linux shows in /sys/class/powercap.

Counters are of a device, whatever process uses it. Where there is no counter, `accelerators` has their power, for an
estimate.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax

RAPL = Path("/sys/class/powercap")
INTERVAL = 1.0  # seconds between samples; a RAPL counter wraps after minutes

log = logging.getLogger(__name__)


class Counter(Protocol):
    """Something that counts energy."""

    def joules(self) -> float:
        """Since it was made. Call it at least once a minute. Raises an exception where it can be read no longer."""


class EnergyCounter:
    """A counter that `read` returns in multiples of `unit` joules, which starts again after `limit` (0: never)."""

    def __init__(self, read: Callable[[], int], unit: float, limit: int = 0):
        self._read, self._unit, self._limit = read, unit, limit
        self._last, self._total = read(), 0

    def joules(self) -> float:
        now = self._read()
        self._total += now - self._last if now >= self._last else now + max(self._limit - self._last, 0)
        self._last = now
        return self._total * self._unit


class PowerIntegral:
    """The integral of a power, which `read` returns in watts."""

    def __init__(self, read: Callable[[], float], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._last, self._time, self._total = read(), clock(), 0.0

    def joules(self) -> float:
        now, power = self._clock(), self._read()
        self._total += (now - self._time) * (power + self._last) / 2
        self._last, self._time = power, now
        return self._total


class Counters(NamedTuple):
    """The counters of this host by component ("accelerators", "cpu", "memory"), how they are read, and why components
    are missing; the latter two for people."""

    counters: Mapping[str, Sequence[Counter]]
    sources: Mapping[str, str]
    missing: Mapping[str, str]


def find(devices: Sequence[jax.Device]) -> Counters:
    """The counters of this process's `devices`, and of the host's CPUs and memory."""
    parts = [rapl()]
    if any(device.platform in ("gpu", "cuda") for device in devices):
        parts.append(nvml([device.local_hardware_id or 0 for device in devices]))
    return Counters(*({name: value for part in parts for name, value in part[i].items()} for i in range(3)))


def rapl(root: Path = RAPL) -> Counters:
    """The counters of CPU packages and of memory under `root`."""
    counters: dict[str, list[Counter]] = {}
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's have this name too
        try:
            name = (zone / "name").read_text().strip()
            component = "cpu" if name.startswith("package") else "memory" if name == "dram" else None
            if component:  # psys and core are measured in others
                limit = int((zone / "max_energy_range_uj").read_text())
                counters.setdefault(component, []).append(EnergyCounter(
                    lambda file=zone / "energy_uj": int(file.read_text()), 1e-6, limit))
        except PermissionError:
            reason = f"{zone}/energy_uj may be read by the administrator alone"
            return Counters({}, {}, dict.fromkeys(("cpu", "memory"), reason))
        except (OSError, ValueError) as error:
            return Counters({}, {}, dict.fromkeys(("cpu", "memory"), f"{zone} cannot be read: {error}"))
    missing = {"cpu": f"no RAPL counter in {root}", "memory": f"no RAPL counter of memory in {root}"}
    return Counters(counters, dict.fromkeys(counters, "RAPL"),
                    {name: reason for name, reason in missing.items() if name not in counters})


def nvml(local_ids: Sequence[int], environment: Mapping[str, str] = os.environ, library: ModuleType | None = None
         ) -> Counters:
    """The counters of NVIDIA GPUs, given their numbers among those that this process sees."""
    try:
        library = library or importlib.import_module("pynvml")
        library.nvmlInit()
        handles = [_handle(library, number, environment) for number in local_ids]
        return Counters(*_gpu_counters(library, handles), {})
    except ImportError:
        return Counters({}, {}, {"accelerators": "the package nvidia-ml-py is not installed"})
    except Exception as error:  # NVMLError, or what its version raises
        return Counters({}, {}, {"accelerators": f"NVML: {error}"})


def _handle(library: ModuleType, number: int, environment: Mapping[str, str]) -> Any:
    """NVML's handle of a GPU, by what CUDA_VISIBLE_DEVICES calls it."""
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[number] if number < len(visible) else str(number)
    return (library.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal()
            else library.nvmlDeviceGetHandleByUUID(name))


def _gpu_counters(library: ModuleType, handles: Sequence[Any]) -> tuple[dict[str, list[Counter]], dict[str, str]]:
    try:
        counters: list[Counter] = [
            EnergyCounter(lambda handle=handle: library.nvmlDeviceGetTotalEnergyConsumption(handle), 1e-3)
            for handle in handles]
        return {"accelerators": counters}, {"accelerators": "NVML"}
    except library.NVMLError:  # before Volta
        counters = [PowerIntegral(lambda handle=handle: library.nvmlDeviceGetPowerUsage(handle) / 1e3)
                    for handle in handles]
        return {"accelerators": counters}, {"accelerators": f"NVML, power every {INTERVAL:g} s"}


class Meter:
    """Reads the counters of a host every `interval` seconds in a thread. Use it as a context."""

    def __init__(self, counters: Counters, interval: float = INTERVAL):
        self._counters = dict(counters.counters)
        self.sources, self.missing = dict(counters.sources), dict(counters.missing)
        self._interval, self._lock, self._stop = interval, threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._sample, name="energy", daemon=True)

    def __enter__(self) -> "Meter":
        if self._counters:
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            self.joules()

    def joules(self) -> dict[str, float]:
        """By component. One whose counter fails is missing from then on."""
        with self._lock:
            totals = {}
            for name, counters in list(self._counters.items()):
                try:
                    totals[name] = sum(counter.joules() for counter in counters)
                except Exception as error:  # a driver may go away; the run goes on
                    log.warning("the energy of %s can no longer be read: %s", name, error)
                    del self._counters[name], self.sources[name]
                    self.missing[name] = str(error)
            return totals
