"""Plans a run on hardware that is not here, by its training step, compiled ahead of time.

The step time is a lower bound by the roofline model (Williams et al., 2009): a chip needs at least the time of its
matrix products at peak, of its memory traffic at full bandwidth, and of what it sends.
"""

import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from lmrep.core.messages import byte_size
from lmrep.core.params import Tree, flatten
from lmrep.core.sharding import make_mesh, use_mesh
from lmrep.core.vocabulary import Vocabulary
from lmrep.experiment import config as experiments
from lmrep.experiment import shapes
from lmrep.experiment.config import Experiment
from lmrep.experiment.shapes import StageShapes
from lmrep.planning import flops
from lmrep.planning.hardware import Hardware, quiet
from lmrep.planning.hlo import Collective, Program
from lmrep.planning.run_cost import kilowatt_hours
from lmrep.training.config import CostConfig
from lmrep.training.state import TrainState, saved, trainable
from lmrep.training.step import compiled_train_step

REPEATED = 1.1  # ratio of executed to traced products from which part of them counts as replicated
LARGE = 2**20  # bytes from which an array counts as large


class Memory(NamedTuple):
    """Bytes on each chip."""

    parameters: int  # trained parameters
    frozen: int  # parameters that are not trained (`config.frozen`)
    optimizer: int  # optimizer state, and the state that a recurrent network carries
    batch: int  # the input
    activations: int  # arrays that the forward pass keeps for the backward pass
    temporaries: int  # everything else that exists at the same time, such as gradients and gathered parameters
    program: int  # the compiled step itself
    needed: int  # the sum
    available: int  # bytes that programs may allocate; 0 where unknown


class Checkpoint(NamedTuple):
    """Bytes of a checkpoint in a store."""

    total: int  # of all arrays
    written: int  # by the host that writes most; it holds a copy of them in its memory while it saves
    read: int  # by the host that reads most, when the run is resumed


class Transfer(NamedTuple):
    """Collectives of one operation over the same axes."""

    opcode: str  # "all-gather"
    axes: tuple[str, ...]  # axes of the mesh that they run over
    count: int  # number of runs in a step
    bytes: float  # bytes that each chip sends in a step
    largest: int  # bytes of the largest array
    seconds: float  # lower bound of the time in a step
    slices: bool  # whether they cross between slices, or hosts of GPUs


class StepPlan(NamedTuple):
    """The training step of a stage. Networks within slices or hosts and between them are used at the same time."""

    stage: str  # its name
    steps: int | None  # number of steps; None for a task whose data decide it
    batch_size: int  # of the global batch, as the next two
    length: int
    microbatches: int
    mesh: dict[str, int]  # {axis: size}
    memory: Memory
    checkpoint: Checkpoint
    flops: float  # of the step's matrix products, on all chips together, with recomputation
    executed: float  # FLOPs of the matrix products that one chip computes
    traffic: float  # bytes that one chip reads from and writes to its memory
    transfers: tuple[Transfer, ...]  # collectives by kind and axes
    compute: float  # lower bound of the time of matrix products, in seconds
    bandwidth: float  # likewise, of memory traffic
    network: float  # likewise, of communication
    warnings: tuple[str, ...]  # what is wasteful or will fail, and what to change
    compile_seconds: float  # time that compiling took here

    @property
    def fits(self) -> bool:
        """Whether the step fits the memory of a chip."""
        return not self.memory.available or self.memory.needed <= self.memory.available

    @property
    def seconds(self) -> float:
        """The lower bound of the step time, if computation, memory traffic and communication overlap completely."""
        return max(self.compute, self.bandwidth, self.network)

    @property
    def limit(self) -> str:
        """The name of what bounds the step time."""
        return max((self.compute, "matrix products"), (self.bandwidth, "memory bandwidth"),
                   (self.network, "communication"))[1]

    def utilisation(self, peak: float) -> float:
        """Returns the largest possible fraction of the chips' peak that products use, with recomputation."""
        return self.flops / math.prod(self.mesh.values()) / peak / self.seconds

    @property
    def intensity(self) -> float:
        """FLOPs per byte of memory traffic."""
        return self.executed / self.traffic if self.traffic else math.inf


def plan(experiment: Experiment, hardware: Hardware, vocabulary: Vocabulary | None = None) -> list[StepPlan]:
    """Plans the training step of every stage of an experiment. Stages that differ are compiled at the same time.

    Args:
      experiment: any experiment, of pretraining or of a task.
      hardware: the devices to plan for.
      vocabulary: of the tokenizer; None if it is not trained yet.

    Raises:
      UserError: the mesh does not divide the devices, the batch or the network.
    """
    sizes = experiments.check_mesh(experiment, len(hardware.devices))
    mesh = make_mesh(*sizes, devices=hardware.devices[: math.prod(sizes)])
    stages = shapes.without_data(experiment, vocabulary, mesh)
    different = {_program_key(stage): stage for stage in reversed(stages)}
    plans = dict(zip(different, plan_stages(list(different.values()), mesh, hardware), strict=True))
    return [plans[_program_key(stage)]._replace(stage=stage.fields.name, steps=_steps(stage)) for stage in stages]


def _program_key(stage: StageShapes) -> tuple:
    """Returns the settings that determine the program of a stage."""
    fields = stage.fields
    return (fields.length, fields.batch_size, fields.microbatches, fields.objective, fields.format,
            repr(fields.optimizer))


def _steps(stage: StageShapes) -> int | None:
    return None if stage.fields.steps == experiments.UNKNOWN_STEPS else stage.fields.steps


class Compiled(NamedTuple):
    """The result of compiling a step."""

    program: Program | None  # None if it does not fit
    temporary: int  # bytes of temporary arrays
    code: int  # bytes of the program
    required: int  # bytes that a step that does not fit needs, by the compiler's message; 0 where it does not say
    seconds: float  # time that compiling took


def plan_stages(stages: Sequence[StageShapes], mesh: Mesh, hardware: Hardware) -> list[StepPlan]:
    """Compiles the steps of stages for `mesh`, all at the same time. Returns their plans."""
    batches, lowered = [shapes.batch(stage, mesh) for stage in stages], []
    with use_mesh(mesh):
        for stage, batch in zip(stages, batches, strict=True):
            built = stage.stage
            step = compiled_train_step(
                built.objective, built.optimizer, mesh, built.batch_size, 0, built.microbatches)
            lowered.append(step.lower(stage.state, batch))
    with quiet() as messages, uncached(), ThreadPoolExecutor(len(stages)) as pool:
        compiled = list(pool.map(_compile, lowered))
        printed = messages()
    return [_step_plan(stage, batch, program, mesh, hardware, printed)
            for stage, batch, program in zip(stages, batches, compiled, strict=True)]


def _compile(lowered: jax.stages.Lowered) -> Compiled:
    """Compiles a step. A step that does not fit is a result, not an error."""
    began = time.monotonic()
    try:
        compiled = lowered.compile()
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Compiled(None, 0, 0, _required(str(error)), time.monotonic() - began)
    sizes = compiled.memory_analysis()
    program = Program(compiled.as_text())
    return Compiled(program, sizes.temp_size_in_bytes, sizes.generated_code_size_in_bytes, 0, time.monotonic() - began)


def _step_plan(
    shapes: StageShapes, batch: Tree, compiled: Compiled, mesh: Mesh, hardware: Hardware, printed: str,
) -> StepPlan:
    """Makes the plan of a compiled step. `printed` is what the compiler printed."""
    stage, program, chip = shapes.stage, compiled.program, hardware.chip
    traced = flops.of_train_step(stage.objective, stage.optimizer, batch, stage.microbatches)
    collectives = program.collectives(mesh.size) if program else []
    transfers = _transfers(collectives, mesh, list(mesh.devices.flat), hardware)
    executed = program.flops() if program else traced / mesh.size
    traffic = program.traffic() if program else 0.0
    plan = StepPlan(
        shapes.fields.name, _steps(shapes), stage.batch_size, shapes.fields.length, stage.microbatches,
        dict(mesh.shape),
        _memory(shapes, batch, compiled, int(chip.memory)), checkpoint(shapes.state, hardware), float(traced), executed,
        traffic, transfers,
        max(executed, traced / mesh.size) / chip.flops, traffic / chip.bandwidth,
        max(sum(transfer.seconds for transfer in transfers if transfer.slices == slow) for slow in (False, True)), (),
        compiled.seconds)
    return plan._replace(warnings=tuple(_warnings(plan, shapes, mesh, printed, program)))


def _memory(shapes: StageShapes, batch: Tree, compiled: Compiled, available: int) -> Memory:
    parameters, inputs = _on_chip(trainable(shapes.state.params)), _on_chip(batch)
    frozen = _on_chip(shapes.state.params) - parameters
    optimizer = _on_chip((shapes.state.opt_state, shapes.state.carry))
    arguments, temporary = parameters + frozen + optimizer + inputs, compiled.temporary
    total = arguments + temporary + compiled.code
    if compiled.program is None:
        temporary, total = max(compiled.required - arguments, 0), max(compiled.required, arguments, available + 1)
    kept = min(compiled.program.saved_bytes(), temporary) if compiled.program else 0
    return Memory(parameters, frozen, optimizer, inputs, kept, temporary - kept, compiled.code, total, available)


def checkpoint(state: TrainState, hardware: Hardware) -> Checkpoint:
    """Returns the bytes of a checkpoint of a state of shapes with shardings. Each shard is written by the first of its
    devices, and read once by each host that has it, as `lmrep.storage.shards` does."""
    total, written, read = 0, Counter(), Counter()
    for x in jax.tree.leaves(saved(state)):
        size, hosts = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize, {}
        for device, index in x.sharding.devices_indices_map(x.shape).items():
            hosts.setdefault(str(index), []).append(hardware.host_of(device))
        total += size * len(hosts)
        for of_shard in hosts.values():
            written[of_shard[0]] += size
            read.update(dict.fromkeys(of_shard, size))
    return Checkpoint(total, max(written.values()), max(read.values()))


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Disables JAX's compilation cache in a context: the text of a cached program lacks the names of operations."""
    previous = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", previous)
        compilation_cache.reset_cache()


def _on_chip(tree: Any) -> int:
    """Returns the bytes of arrays on one chip."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _required(message: str) -> int:
    """Reads the bytes that a program needs from XLA's error message; 0 where it names none."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    sizes = [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([KMGT]?)\b", message)
             if unit and "." in number]
    return int(max(sizes, default=0))


def _transfers(
    collectives: Sequence[Collective], mesh: Mesh, order: list[jax.Device], hardware: Hardware,
) -> tuple[Transfer, ...]:
    """Groups collectives by kind and axes, the slowest first."""
    groups: dict[tuple, list[Collective]] = {}
    for collective in collectives:
        crossing = len({hardware.part_of(order[i]) for i in collective.groups[0]}) > 1
        groups.setdefault((collective.opcode, axes_of(collective.groups, mesh), crossing), []).append(collective)
    transfers = [Transfer(opcode, axes, sum(c.times for c in group), sum(c.sent for c in group),
                          max(c.bytes for c in group),
                          sum(c.sent / hardware.speed(c.groups, order) for c in group), crossing)
                 for (opcode, axes, crossing), group in groups.items()]
    return tuple(sorted(transfers, key=lambda transfer: -transfer.seconds))


def axes_of(groups: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    """Returns the axes of the mesh along which the devices of a group differ."""
    coordinates = np.unravel_index(groups, tuple(mesh.shape.values()))
    return tuple(name for name, values in zip(mesh.shape, coordinates, strict=True)
                 if (values != values[:, :1]).any())


def _warnings(plan: StepPlan, shapes: StageShapes, mesh: Mesh, printed: str, program: Program | None) -> list[str]:
    """Returns what is wasteful or will fail, and what to change, a line for each."""
    lines, memory = [], plan.memory
    if not plan.fits:
        lines.append(f"it needs {byte_size(memory.needed)} of a chip's {byte_size(memory.available)}")
    if plan.executed > REPEATED * plan.flops / mesh.size:
        lines.append(f"each chip computes {plan.executed * mesh.size / plan.flops:.2f} times its share of the matrix "
                     "products: part of them is replicated; use sizes that the mesh divides, or a smaller tensor axis")
    replicated = [path for path, x in flatten(trainable(shapes.state.params)).items()
                  if x.sharding.is_fully_replicated and math.prod(x.shape) * x.dtype.itemsize >= LARGE]
    if replicated and mesh.size > mesh.shape["data"]:
        lines.append(f"replicated on all chips: {', '.join(replicated[:3])}{' ...' if replicated[3:] else ''}; the "
                     "mesh does not divide them: use a multiple of it, such as another model.vocab")
    if "nvoluntary full rematerialization" in printed:
        lines.append("the partitioner replicates an activation to lay it out anew (involuntary full rematerialization)")
    if program:
        again = Counter(operation.opcode for _, operation, _ in program.operations() if ".remat" in operation.name)
        if total := sum(again.values()):
            lines.append(f"memory is short: the compiler recomputes {total} operations; --config.execution.remat=dots "
                         "chooses what is recomputed")
    return lines


class PlannedCost(NamedTuple):
    """The cost of a whole run, by the lower bound of each step's time; None where something is not known."""

    hours: float  # from start to end
    chip_hours: float  # hours times the number of chips
    kwh: float | None  # energy of the chips times the PUE
    co2_kg: float | None  # emissions of that energy
    price: float | None  # in the currency of `cost.price_per_hour`
    utilisation: float  # the largest possible fraction of the chips' peak, recomputation included


def cost_of_run(plans: Sequence[StepPlan], hardware: Hardware, config: CostConfig = CostConfig()) -> PlannedCost | None:
    """Returns the cost of a run with these stages; None if the number of its steps is not known."""
    if any(plan.steps is None for plan in plans):
        return None
    seconds = sum(plan.steps * plan.seconds for plan in plans)
    chips = math.prod(plans[0].mesh.values())
    chip_hours, watts = chips * seconds / 3600, config.device_watts or hardware.chip.watts
    kwh = kilowatt_hours(3600 * chip_hours * watts, config.pue) if watts else None
    products = sum(plan.steps * plan.flops for plan in plans)
    return PlannedCost(seconds / 3600, chip_hours, kwh, None if kwh is None else kwh * config.grid,
                chip_hours * config.price_per_hour if config.price_per_hour else None,
                products / (chips * hardware.chip.flops * seconds))
