"""Measures the energy of this host: of NVIDIA GPUs by NVML (the package nvidia-ml-py), of CPUs and memory by RAPL,
which Linux shows in /sys/class/powercap.

A counter measures a device, whatever processes use it. Without a counter, energy is estimated from the power in
`accelerators`.
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
    """Measures the energy of a device."""

    def joules(self) -> float:
        """Returns the energy since the counter was made, in joules. Call it at least once a minute. Raises an exception
        if the device can no longer be read."""


class EnergyCounter:
    """A hardware counter that `read` returns in multiples of `unit` joules. It wraps to 0 after `limit` (0: never)."""

    def __init__(self, read: Callable[[], int], unit: float, limit: int = 0):
        self._read, self._unit, self._limit = read, unit, limit
        self._last, self._total = read(), 0

    def joules(self) -> float:
        now = self._read()
        self._total += now - self._last if now >= self._last else now + max(self._limit - self._last, 0)
        self._last = now
        return self._total * self._unit


class PowerIntegral:
    """Integrates the power that `read` returns in watts, by the trapezoidal rule."""

    def __init__(self, read: Callable[[], float], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._last, self._time, self._total = read(), clock(), 0.0

    def joules(self) -> float:
        now, power = self._clock(), self._read()
        self._total += (now - self._time) * (power + self._last) / 2
        self._last, self._time = power, now
        return self._total


class Counters(NamedTuple):
    """The counters of this host by component: "accelerators", "cpu", "memory"."""

    counters: Mapping[str, Sequence[Counter]]
    sources: Mapping[str, str]  # how they are read, for messages
    missing: Mapping[str, str]  # why components have no counter, for messages


def find(devices: Sequence[jax.Device]) -> Counters:
    """Finds the counters of this process's `devices`, and of the host's CPUs and memory."""
    parts = [rapl()]
    if any(device.platform in ("gpu", "cuda") for device in devices):
        parts.append(nvml([device.local_hardware_id or 0 for device in devices]))
    return Counters(*({name: value for part in parts for name, value in part[i].items()} for i in range(3)))


def rapl(root: Path = RAPL) -> Counters:
    """Finds the counters of CPU packages and of memory under `root`."""
    counters: dict[str, list[Counter]] = {}
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's have this name too
        try:
            name = (zone / "name").read_text().strip()
            component = "cpu" if name.startswith("package") else "memory" if name == "dram" else None
            if component:  # others, such as psys and core, overlap with these
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
    """Finds the counters of NVIDIA GPUs. `local_ids` are their numbers among the GPUs that this process sees."""
    try:
        library = library or importlib.import_module("pynvml")
        library.nvmlInit()
        handles = [_handle(library, number, environment) for number in local_ids]
        return Counters(*_gpu_counters(library, handles), {})
    except ImportError:
        return Counters({}, {}, {"accelerators": "the package nvidia-ml-py is not installed"})
    except Exception as error:  # NVMLError, and errors of other versions of the library
        return Counters({}, {}, {"accelerators": f"NVML: {error}"})


def _handle(library: ModuleType, number: int, environment: Mapping[str, str]) -> Any:
    """Returns NVML's handle of a GPU, which CUDA_VISIBLE_DEVICES may name by number or UUID."""
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
    """Reads the counters of a host every `interval` seconds in a thread. Use it as a context manager."""

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
        """Returns joules since the start by component. A component whose counter fails is missing from then on."""
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
