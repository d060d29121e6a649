"""Records the cost of a run in cost.jsonl of its workdir: operations, device-hours, energy and CO2.

Energy and CO2 follow Strubell et al. (2019): p = PUE * t * (p_cpu + p_memory + g * p_gpu) / 1000 kilowatt-hours, with a
PUE of 1.58, and 0.954 pounds of CO2 per kilowatt-hour, the mean of the United States.
"""

import json
import math
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import jax

from lmrep.config.json_files import Count, Number, read_lines
from lmrep.config.record import Bounds
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.distributed.process_group import gather_texts
from lmrep.planning import accelerators, flops
from lmrep.planning.energy import Meter
from lmrep.storage.jsonl import JsonLines
from lmrep.training.config import CostConfig
from lmrep.training.metrics_log import OptionalWriter
from lmrep.training.stages import Stage

FILE = "cost.jsonl"
JOULES_PER_KWH = 3.6e6
NAMES = {"accelerators": "accelerators", "cpu": "CPUs", "memory": "memory"}  # {component: name in messages}


class Line(TypedDict):
    """A line of cost.jsonl: the cost of a start of the run up to a checkpoint."""

    start: str
    step: Count
    steps: Annotated[Count, Bounds(at_least=1)]
    flops: Number
    seconds: Number
    device_hours: Number
    joules: dict[str, Number] | None
    energy: str
    pue: Number
    grid: Number
    price_per_hour: Number


class Cost(NamedTuple):
    """The cost of a run over all its starts; None where it is not known."""

    step: int  # the last step with a line
    steps: int  # number of computed steps, with those that were repeated after a fault or a kill
    flops: float | None  # operations of these steps, counted by `flops.of_train_step`
    seconds: float  # from the start of training to the last checkpoint, with compilation and validation
    device_hours: float  # that time times the number of devices
    kwh: float | None  # energy times the PUE
    co2_kg: float | None  # emissions of that energy
    price: float | None  # in the currency of `cost.price_per_hour`
    energy: str  # how the energy was measured or estimated, or why it is not known
    pue: float  # the assumption of the last line
    grid: float  # likewise


def kilowatt_hours(joules: float, pue: float) -> float:
    """Returns the energy that a data centre takes for `joules` of its processors, memory and accelerators."""
    return pue * joules / JOULES_PER_KWH


class CostLog:
    """Writes a line to cost.jsonl for each checkpoint: the cost of this start of the run, and of the run in total.

    All processes of a run make the same calls; the first one writes.

    Args:
      directory: the workdir.
      config: the assumptions about energy and price.
      devices: the devices of the mesh, over all processes.
      meter: the energy meter of this host.
    """

    def __init__(self, directory: Path, config: CostConfig, devices: Sequence[jax.Device], meter: Meter):
        self._directory, self._config, self._devices, self._meter = directory, config, devices, meter
        self._first = jax.process_index() == 0
        self._file = OptionalWriter(FILE, lambda: JsonLines(directory / FILE))
        self._begin, self._start = time.monotonic(), f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {time.time_ns()}"
        self._batches: Counter = Counter()  # (stage, shapes of a batch) -> steps
        self._flops: dict[tuple, float] = {}

    def count(self, stage: Stage, batch: Mapping[str, Any]) -> None:
        """Counts a step of a stage on a global batch."""
        if self._first:
            self._batches[stage, tuple((path, x.shape, str(x.dtype)) for path, x in P.flatten(batch).items())] += 1

    def write(self, step: int) -> None:
        """Writes what was counted up to checkpoint `step`."""
        host = {"host": socket.gethostname(), "joules": self._meter.joules(), "sources": self._meter.sources,
                "missing": self._meter.missing}
        hosts = [host] if jax.process_count() == 1 else [json.loads(text) for text in gather_texts(json.dumps(host))]
        if not self._first or not self._batches:
            return
        seconds, devices, config = time.monotonic() - self._begin, len(self._devices), self._config
        joules, source = total_energy(hosts, self._devices, seconds, config)
        record = {
            "start": self._start, "step": step, "time": time.time(), "steps": sum(self._batches.values()),
            "flops": sum(self._flops_of(*key) * steps for key, steps in self._batches.items()),
            "seconds": seconds, "devices": devices, "device_kind": self._devices[0].device_kind,
            "device_hours": devices * seconds / 3600, "joules": joules, "energy": source, "pue": config.pue,
            "grid": config.grid, "price_per_hour": config.price_per_hour}
        run = summed([*lines(self._directory), record])
        figures = ("flops", "device_hours", "kwh", "co2_kg", "price")
        self._file.write(record | {"run": {name: getattr(run, name) for name in figures}})
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _flops_of(self, stage: Stage, shapes: tuple) -> float:
        """Returns the operations of a step, which is traced once for each shape of a batch."""
        if (stage, shapes) not in self._flops:
            batch = P.unflatten({path: jax.ShapeDtypeStruct(shape, dtype) for path, shape, dtype in shapes})
            self._flops[stage, shapes] = stage.flops or flops.of_train_step(
                stage.objective, stage.optimizer, batch, stage.microbatches)
        return self._flops[stage, shapes]


def total_energy(
    hosts: Sequence[Mapping[str, Any]], devices: Sequence[jax.Device], seconds: float, config: CostConfig
) -> tuple[dict[str, float] | None, str]:
    """Sums the energy over all processes. Returns joules by component, and how they were measured or estimated; None if
    neither is possible for the devices that compute.

    Args:
      hosts: for each process its `host` name, and `joules`, `sources` and `missing` of its meter.
      devices: the devices of the mesh.
      seconds: duration of the run.
      config: may give the power of a device, for an estimate.
    """
    joules, text = {}, []
    computing = "cpu" if devices[0].platform == "cpu" else "accelerators"
    for name, title in NAMES.items():
        # Each process measures its own accelerators; processes of one host measure the same CPUs and memory.
        members = hosts if name == "accelerators" else list({host["host"]: host for host in hosts}.values())
        if all(name in host["joules"] for host in members):
            joules[name] = sum(host["joules"][name] for host in members)
            text.append(f"{title} by {members[0]['sources'][name]}")
        elif name == computing:
            kind, reason = devices[0].device_kind, next(
                (host["missing"][name] for host in members if name in host["missing"]), "no counter")
            power = config.device_watts or (accelerators.known(kind).watts if name == "accelerators" else None)
            if power is None:
                return None, f"not known: {reason}, and no power of {kind!r} is on record; cost.device_watts sets it"
            joules[name] = power * seconds * len(devices)
            text.append(f"{title} estimated at {power:g} W each ({reason})")
        elif name != "accelerators":
            text.append(f"{title} not measured")
    return joules, ", ".join(text)


def lines(directory: Path) -> list[Line]:
    """Reads the lines of a workdir's cost.jsonl; damaged ones are left out."""
    try:
        content = read_lines(Line, Path(directory) / FILE)
    except UserError:
        return []
    return content.records if content else []


def read(directory: Path) -> Cost | None:
    """Reads the cost of the run in a workdir; None where nothing is recorded."""
    return summed(lines(directory))


def summed(records: Sequence[Mapping[str, Any]]) -> Cost | None:
    """Sums the last lines of all starts. PUE, grid and price are those of the last start."""
    if not records:
        return None
    starts, last = list({record["start"]: record for record in records}.values()), records[-1]
    hours = math.fsum(record["device_hours"] for record in starts)
    known = all(record["joules"] is not None for record in starts)
    kwh = kilowatt_hours(math.fsum(sum(r["joules"].values()) for r in starts), last["pue"]) if known else None
    sources = list(dict.fromkeys(record["energy"] for record in starts if known or record["joules"] is None))
    return Cost(
        last["step"], sum(record["steps"] for record in starts), math.fsum(record["flops"] for record in starts),
        math.fsum(record["seconds"] for record in starts), hours, kwh, None if kwh is None else kwh * last["grid"],
        hours * last["price_per_hour"] if last["price_per_hour"] else None, "; ".join(sources), last["pue"],
        last["grid"])


def sentence(cost: Cost) -> str:
    """Formats the figures in a line."""
    price = f", {cost.price:,.2f} at the price per device-hour" if cost.price is not None else ""
    done = f"{cost.flops:.4g} FLOPs in {cost.device_hours:.3g} device-hours{price}"
    return f"{done}; {'energy ' if cost.kwh is None else ''}{energy(cost)}"


def energy(cost: Cost) -> str:
    """Formats energy and emissions, or why they are not known."""
    if cost.kwh is None:
        return cost.energy
    return (f"{cost.kwh:.3g} kWh ({cost.energy}; PUE {cost.pue:g}), {cost.co2_kg:.3g} kg CO2e "
            f"({cost.grid:g} kg per kWh)")
