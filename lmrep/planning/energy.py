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
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax

RAPL = Path("/sys/class/powercap")
INTERVAL = 1.0  # seconds between samples; a RAPL counter wraps after minutes

log = logging.getLogger(__name__)


# Returns the energy of a device since the counter was made, in joules. Call it at least once a minute. It raises an
# exception if the device can no longer be read.
Counter = Callable[[], float]


def energy_counter(read: Callable[[], int], unit: float, limit: int = 0) -> Counter:
    """Counts by a hardware counter, which `read` returns in multiples of `unit` joules. It wraps to 0 after `limit` (0:
    never)."""
    last, total = read(), 0

    def joules() -> float:
        nonlocal last, total
        now = read()
        total += now - last if now >= last else now + max(limit - last, 0)
        last = now
        return total * unit

    return joules


def power_integral(read: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> Counter:
    """Integrates the power that `read` returns in watts, by the trapezoidal rule."""
    last, begin, total = read(), clock(), 0.0

    def joules() -> float:
        nonlocal last, begin, total
        now, power = clock(), read()
        total += (now - begin) * (power + last) / 2
        last, begin = power, now
        return total

    return joules


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
                counters.setdefault(component, []).append(energy_counter(
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
    """Finds the counters of NVIDIA GPUs. `local_ids` are their numbers among the GPUs that this process sees, which
    CUDA_VISIBLE_DEVICES may name by number or UUID."""
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names = [visible[number] if number < len(visible) else str(number) for number in local_ids]
    try:
        library = library or importlib.import_module("pynvml")
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal()
                   else library.nvmlDeviceGetHandleByUUID(name) for name in names]
        try:
            counters, source = [energy_counter(partial(library.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3)
                                for handle in handles], "NVML"
        except library.NVMLError:  # before Volta
            counters = [power_integral(lambda handle=handle: library.nvmlDeviceGetPowerUsage(handle) / 1e3)
                        for handle in handles]
            source = f"NVML, power every {INTERVAL:g} s"
        return Counters({"accelerators": counters}, {"accelerators": source}, {})
    except ImportError:
        return Counters({}, {}, {"accelerators": "the package nvidia-ml-py is not installed"})
    except Exception as error:  # NVMLError, and errors of other versions of the library
        return Counters({}, {}, {"accelerators": f"NVML: {error}"})


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
                    totals[name] = sum(counter() for counter in counters)
                except Exception as error:  # a driver may go away; the run goes on
                    log.warning("the energy of %s can no longer be read: %s", name, error)
                    del self._counters[name], self.sources[name]
                    self.missing[name] = str(error)
            return totals
