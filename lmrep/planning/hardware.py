"""Hardware that a run is planned for: slices of TPU chips that need not be here, or devices of this machine's CPU."""

import contextlib
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.host import available_memory
from lmrep.core.messages import install_hint
from lmrep.core.sharding import slice_of
from lmrep.planning import accelerators

GB = 2**30


class Chip(NamedTuple):
    """The speed and memory of an accelerator chip."""

    title: str  # name in messages
    memory: float  # bytes that programs may allocate
    flops: float  # dense peak in bfloat16, in floating-point operations per second
    bandwidth: float  # of the chip's memory, bytes per second
    interconnect: float  # bytes per second that it sends within its slice, over all its links together
    network: float  # bytes per second that it sends to other slices
    dimensions: int  # of the torus that a slice is part of
    wrap: int  # number of chips along a dimension whose ends are joined
    watts: float | None = None  # power under load; None where the vendor does not publish it


# From Cloud TPU's documentation. Memory is what XLA can allocate; the network of a host is divided by its chips.
CHIPS = {
    "v5e": Chip("TPU v5e", 15.75 * GB, 197e12, 819e9, 200e9, 200e9 / 8 / 8, 2, 16),
    "v5p": Chip("TPU v5p", 95.74 * GB, 459e12, 2765e9, 600e9, 200e9 / 8 / 4, 3, 4),
    "v6e": Chip("TPU v6e", 31.25 * GB, 918e12, 1638e9, 400e9, 800e9 / 8 / 8, 2, 16),
}


class Hardware(NamedTuple):
    """Devices to plan for. Programs are compiled for them, but need not run on them."""

    name: str  # as on the command line, "v5e:16x16"
    chip: Chip  # the type of all devices
    devices: list[jax.Device]  # in JAX's order
    slices: int = 1  # number of slices, joined by the slow network

    def speed(self, groups: np.ndarray, order: list[jax.Device]) -> float:
        """Returns the bytes per second that each chip sends in collectives.

        Args:
          groups: int [groups, devices], the devices that communicate, by their index in `order`.
          order: the devices in the order of the mesh.
        """
        members = [order[i] for i in groups[0]]
        if len({slice_of(device) for device in members}) > 1:
            return self.chip.network
        if not self.chip.dimensions:
            return self.chip.interconnect
        coordinates = np.array([device.coords for device in members])
        extents = [len(set(column)) for column in coordinates.T if len(set(column)) > 1]
        if np.prod(extents) != len(members):
            extents = extents[:1]  # not a block of the torus: at least one link
        links = sum(1.0 if extent % self.chip.wrap == 0 else 0.5 for extent in extents)  # a ring, or a line
        return self.chip.interconnect * max(links, 0.5) / self.chip.dimensions


def find(name: str, slices: int = 1) -> Hardware:
    """Returns the hardware that a name describes.

    Args:
      name: a TPU version and the number of chips along each dimension of a slice, "v5e:16x16"; or devices of this
        machine's CPU, "cpu:8", whose speed is measured now.
      slices: number of slices of that shape.

    Raises:
      UserError: there is no such hardware, or libtpu is not installed.
    """
    version, _, shape = name.partition(":")
    if version == "cpu" and shape.isdecimal() and int(shape):
        if slices > 1:
            raise UserError(f"--slices is {slices}, and {name} has no slices; choose a TPU topology")
        return _host(name, int(shape))
    if version not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        raise UserError(f"--topology is {name!r}; expected a TPU version ({', '.join(CHIPS)}) and the chips along each "
                        "dimension of a slice, such as v5e:16x16 or v5p:4x4x4, or devices of the CPU, such as cpu:8")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # this machine need not have a TPU
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # compiling needs no TPU: plans can run side by side
    from jax.experimental import topologies

    options = {"num_slices": slices} if slices > 1 else {}
    try:
        with quiet():
            topology = topologies.get_topology_desc(name, platform="tpu", **options)
    except Exception as error:
        message = str(error).strip()
        if "not installed" in message:
            raise UserError(f"to compile for TPUs that are not here, install libtpu: {install_hint('plan')}"
                            ) from None
        if "opology" in message:
            raise UserError(f"libtpu knows no topology {name}: {message.splitlines()[0]}") from None
        raise UserError(f"libtpu could not start: {message}") from None
    return Hardware(name, CHIPS[version], list(topology.devices), slices)


def here(used: int) -> Hardware:
    """Returns the devices of this process, of which a run uses the first `used`. Speeds that are not known are
    infinite: only the peak of matrix products is known, and for CPUs nothing."""
    devices = jax.local_devices()
    memory = (devices[0].memory_stats() or {}).get("bytes_limit", 0)
    if devices[0].platform == "cpu":
        memory = (available_memory() or 0) / used
    kind = devices[0].device_kind
    chip = Chip(kind, memory, accelerators.known(kind).flops or math.inf, math.inf, math.inf, math.inf, 0, 1)
    return Hardware("here", chip, devices)


def _host(name: str, count: int) -> Hardware:
    with contextlib.suppress(RuntimeError):  # the backend has started
        if "device_count" not in os.environ.get("XLA_FLAGS", ""):
            jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(f"--topology is {name}, and JAX has started with {len(devices)} CPU device(s); set "
                        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}")
    flops, bandwidth = _measure()
    flops, bandwidth = flops / count, bandwidth / count
    # What one device sends, another reads and writes in the same memory.
    chip = Chip("CPU device", (available_memory() or 0) / count, flops, bandwidth, bandwidth / 2, 0.0, 0, 1)
    return Hardware(name, chip, devices[:count])


def _measure() -> tuple[float, float]:
    """Measures this machine: floating-point operations per second of float32 matrix products, and bytes per second."""
    def seconds(f, *arguments) -> float:
        f = jax.jit(f)
        jax.block_until_ready(f(*arguments))
        times = []
        for _ in range(3):
            began = time.perf_counter()
            jax.block_until_ready(f(*arguments))
            times.append(time.perf_counter() - began)
        return min(times)

    n, m = 1024, 2**25
    square, line = jnp.ones((n, n)), jnp.ones(m)
    return 2 * n**3 / seconds(jnp.dot, square, square), 8 * m / seconds(lambda x: x + 1, line)


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Captures what C++ libraries print to standard error. The context gives a function that returns the text."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def printed() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield printed
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
