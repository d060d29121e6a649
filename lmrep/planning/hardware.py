"""Hardware that a run is planned for: TPU slices and GPUs that need not be here, or devices of this machine's CPU."""

import contextlib
import math
import os
import re
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.host import available_memory
from lmrep.core.messages import byte_size, install_hint
from lmrep.core.sharding import slice_of
from lmrep.planning import accelerators, cuda
from lmrep.planning.accelerators import ACCELERATORS, GPUS, TPUS, Chip

FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # of a GPU's memory, which JAX allocates
FRACTION = 0.75  # where neither is set


class Hardware(NamedTuple):
    """Devices to plan for. Programs are compiled for them, but need not run on them."""

    name: str  # as on the command line, "v5e:16x16"
    chip: Chip  # the type of all devices
    devices: list[jax.Device]  # in JAX's order
    slices: int = 1  # number of TPU slices, joined by the slow network
    hosts: int = 0  # number of hosts of GPUs, joined by the slow network; 0 for other devices
    note: str = ""  # for GPUs: how the program was compiled, and what that means

    @property
    def parts(self) -> str:
        """The name of the groups of devices between which the network is slow."""
        return "hosts" if self.hosts else "slices"

    def part_of(self, device: jax.Device) -> int:
        """Returns the number of the TPU slice of a device, or of its host of GPUs."""
        return device.id * self.hosts // len(self.devices) if self.hosts else slice_of(device)

    def host_of(self, device: jax.Device) -> int:
        """Returns the number of the host of a device."""
        return self.part_of(device) if self.hosts else device.process_index

    def speed(self, groups: np.ndarray, order: list[jax.Device]) -> float:
        """Returns the bytes per second that each chip sends in collectives.

        Args:
          groups: int [groups, devices], the devices that communicate, by their index in `order`.
          order: the devices in the order of the mesh.
        """
        members = [order[i] for i in groups[0]]
        parts = [self.part_of(device) for device in members]
        if self.hosts:
            # Each GPU of a host sends to the others an equal part of what the host's members send.
            shared = min(map(parts.count, set(parts))) * self.chip.network
            return min(shared, self.chip.interconnect) if len(set(parts)) > 1 else self.chip.interconnect
        if len(set(parts)) > 1:
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
      name: a TPU version and the number of chips along each dimension of a slice, "v5e:16x16"; a GPU and the number of
        GPUs of a host, "h100:8", or of hosts and of GPUs in each, "h100:4x8"; or devices of this machine's CPU,
        "cpu:8", whose speed is measured now.
      slices: number of slices of that shape, for TPUs.

    Raises:
      UserError: there is no such hardware, or libtpu is not installed.
    """
    version, _, shape = name.partition(":")
    kind = next((kind for kind, (versions, pattern, _) in SHAPES.items()
                 if version in versions and re.fullmatch(pattern, shape)), None)
    if kind is None:
        raise UserError(f"--topology is {name!r}; {_expected(version)}")
    if slices > 1 and kind != "tpu":
        raise UserError(f"--slices is {slices}, and {name} has no slices; "
                        + ("give the hosts with the topology, as in h100:4x8" if kind == "gpu" else
                           "choose a TPU topology"))
    sizes = [int(size) for size in shape.split("x")]
    if kind != "cpu":
        return _tpus(name, version, slices) if kind == "tpu" else _gpus(name, version, *[1, *sizes][-2:])
    devices = _cpu_devices(name, *sizes)
    flops, bandwidth = (rate / len(devices) for rate in _measure())
    # What one device sends, another reads and writes in the same memory.
    return Hardware(name, Chip("CPU device", (available_memory() or 0) / len(devices), flops, bandwidth, bandwidth / 2,
                               0.0), devices)


# By kind of hardware: its names, the pattern of the text after the colon, and what that is.
SHAPES = {
    "tpu": (TPUS, r"\d+(x\d+){1,2}", "a TPU and the chips along each dimension of a slice, such as v5e:16x16 or "
                                      "v5p:4x4x4"),
    "gpu": (GPUS, r"([1-9]\d*x)?[1-9]\d*", "a GPU and the number of GPUs of a host, such as h100:8, or of hosts and of "
                                            "GPUs in each, such as h100:4x8"),
    "cpu": (("cpu",), r"[1-9]\d*", "devices of this CPU, such as cpu:8"),
}


def _expected(version: str) -> str:
    """Describes the topologies that have this name before the colon, or all if there is none."""
    for versions, _, what in SHAPES.values():
        if version in versions:
            return f"expected {what}"
    names = [name for versions, *_ in SHAPES.values() for name in versions]
    near = [name for name in names if version and name.startswith(version)] or names
    return (f"expected one of {', '.join(names)} and a number of devices, such as v5e:16x16, h100:8, h100:4x8 (4 hosts "
            f"with 8 GPUs each) or cpu:8{suggestion(version, near)}")


def find_all(names: Sequence[str], slices: int = 1) -> list[Hardware]:
    """Returns the hardware of several names, as `find` does."""
    counts = [math.prod(map(int, re.findall(r"\d+", name.partition(":")[2]))) for name in names
              if name.partition(":")[0] not in TPUS]
    _start_cpus(max(counts, default=1))  # JAX's number of CPU devices is set once
    return [find(name, slices) for name in names]


def _tpus(name: str, version: str, slices: int) -> Hardware:
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
    return Hardware(name, ACCELERATORS[TPUS[version]], list(topology.devices), slices)


def _gpus(name: str, version: str, hosts: int, count: int) -> Hardware:
    """Returns GPUs: those of JAX's CUDA plugin, or as many devices of the CPU with the numbers of the GPU."""
    chip, setting = ACCELERATORS[GPUS[version]], next((name for name in FRACTIONS if os.environ.get(name)), "")
    try:
        fraction = float(os.environ.get(setting) or FRACTION)
    except ValueError:
        raise UserError(f"${setting} is {os.environ[setting]!r}; expected the fraction of a GPU's memory that JAX "
                        "allocates, such as 0.9") from None
    memory = (f"Of the {byte_size(chip.memory)} of a GPU JAX allocates {fraction:.0%} "
              f"({'$' + setting if setting else 'another fraction: $' + FRACTIONS[0]}).")
    try:
        with quiet():
            devices = cuda.devices(version, hosts, count)
        note = f"The step is compiled for the GPU, by JAX's CUDA plugin. Its kernels are not tuned on a GPU. {memory}"
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if not isinstance(error, NotImplementedError) else (
            f"JAX's CUDA plugin is not installed: {install_hint('plan_gpu')}")
        devices = _cpu_devices(name, hosts * count)
        note = (f"The step is compiled for devices of the CPU ({reason}). Sharding and FLOPs are those of the "
                "step. Memory, its traffic and communication are estimates: without XLA's fusion for GPUs, its "
                "combined collectives and cuDNN's attention. A step time that memory bandwidth bounds is no lower "
                f"bound then. {memory}")
    return Hardware(name, chip._replace(memory=fraction * chip.memory), devices, hosts=hosts, note=note)


def here(used: int) -> Hardware:
    """Returns the devices of this process, of which a run uses the first `used`. Speeds that are not known are
    infinite: only the peak of matrix products is known, and for CPUs nothing."""
    devices = jax.local_devices()
    memory = (devices[0].memory_stats() or {}).get("bytes_limit", 0)
    if devices[0].platform == "cpu":
        memory = (available_memory() or 0) / used
    kind = devices[0].device_kind
    chip = Chip(kind, memory, accelerators.known(kind).flops or math.inf, math.inf, math.inf, math.inf)
    return Hardware("here", chip, devices)


def _start_cpus(count: int) -> None:
    """Sets the number of JAX's CPU devices, unless JAX has started or $XLA_FLAGS sets it."""
    with contextlib.suppress(RuntimeError):  # the backend has started
        if "device_count" not in os.environ.get("XLA_FLAGS", ""):
            jax.config.update("jax_num_cpu_devices", max(count, jax.config.jax_num_cpu_devices))


def _cpu_devices(name: str, count: int) -> list[jax.Device]:
    """Returns devices of the CPU for the topology `name`."""
    _start_cpus(count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(f"--topology is {name}, and JAX has started with {len(devices)} CPU device(s); set "
                        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}")
    return devices[:count]


def _measure() -> tuple[float, float]:
    """Measures this machine: floating-point operations per second of float32 matrix products, and bytes per second."""
    def seconds(f, *arguments) -> float:
        run = partial(lambda f: jax.block_until_ready(f(*arguments)), jax.jit(f))
        return min(timeit.repeat(run, run, number=1, repeat=3))  # the first run, which compiles, is the setup

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
