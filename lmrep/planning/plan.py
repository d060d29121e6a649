"""What a run will need on hardware that is not here: its own training step, compiled ahead of time.

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
from lmrep.core.sharding import make_mesh, slice_of, use_mesh
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
from lmrep.training.state import trainable
from lmrep.training.step import compiled_train_step

REPEATED = 1.1  # times the products of the step, from which they count as computed more than once
LARGE = 2**20  # bytes from which an array counts as large


class Memory(NamedTuple):
    """Bytes on each chip.

    Attributes:
      parameters, frozen, optimizer: of the training state; `frozen` of those that are not trained (`config.frozen`);
        `optimizer` includes what a recurrent network carries.
      batch: of the input.
      activations: what the forward pass keeps for the backward pass.
      temporaries: everything else that exists at the same time, such as gradients and gathered parameters.
      program: the compiled step itself.
      needed: their sum.
      available: what programs may allocate; 0 where unknown.
    """

    parameters: int
    frozen: int
    optimizer: int
    batch: int
    activations: int
    temporaries: int
    program: int
    needed: int
    available: int


class Transfer(NamedTuple):
    """Collectives of one operation over the same axes."""

    opcode: str  # "all-gather"
    axes: tuple[str, ...]  # of the mesh, that they run over
    count: int  # how many run in a step
    bytes: float  # that each chip sends in a step
    largest: int  # bytes of the largest array
    seconds: float  # that sending takes at least
    slices: bool  # whether it crosses between slices


class StepPlan(NamedTuple):
    """The training step of a stage.

    Attributes:
      stage: its name.
      steps: how many; None for a task whose number of steps its data decide.
      batch_size, length, microbatches: of the global batch.
      mesh: axis -> size.
      memory: on each chip.
      flops: of the step's matrix products, on all chips together, with recomputation.
      executed: of the matrix products that one chip computes.
      traffic: bytes that one chip reads from and writes to its memory.
      transfers: by kind and axes.
      compute, bandwidth, network: seconds that each of these takes at least; the networks in slices and between them
        are used at the same time.
      warnings: what is wasteful or will fail, and what to change.
      compile_seconds: that compiling took here.
    """

    stage: str
    steps: int | None
    batch_size: int
    length: int
    microbatches: int
    mesh: dict[str, int]
    memory: Memory
    flops: float
    executed: float
    traffic: float
    transfers: tuple[Transfer, ...]
    compute: float
    bandwidth: float
    network: float
    warnings: tuple[str, ...]
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether the step fits the memory of a chip."""
        return not self.memory.available or self.memory.needed <= self.memory.available

    @property
    def seconds(self) -> float:
        """That a step takes at least, if computing, reading and sending overlap completely."""
        return max(self.compute, self.bandwidth, self.network)

    @property
    def limit(self) -> str:
        """What bounds the step time."""
        return max((self.compute, "matrix products"), (self.bandwidth, "memory bandwidth"),
                   (self.network, "communication"))[1]

    def utilisation(self, peak: float) -> float:
        """The largest possible fraction of the chips' peak that the step's products use, recomputation included."""
        return self.flops / math.prod(self.mesh.values()) / peak / self.seconds

    @property
    def intensity(self) -> float:
        """FLOPs per byte of memory traffic."""
        return self.executed / self.traffic if self.traffic else math.inf


def plan(experiment: Experiment, hardware: Hardware, vocabulary: Vocabulary | None = None) -> list[StepPlan]:
    """The plan of every stage of an experiment. Different stages are compiled at the same time.

    Args:
      experiment: of any kind.
      hardware: to plan for.
      vocabulary: of its tokenizer; None for what is known of one before it is trained.

    Raises:
      UserError: the mesh does not fit the devices, the batch or the network.
    """
    sizes = experiments.check_mesh(experiment, len(hardware.devices))
    mesh = make_mesh(*sizes, devices=hardware.devices[: math.prod(sizes)])
    stages = shapes.without_data(experiment, vocabulary, mesh)
    different = {_program(one): one for one in reversed(stages)}
    plans = dict(zip(different, plan_stages(list(different.values()), mesh, hardware), strict=True))
    return [plans[_program(one)]._replace(stage=one.plan.name, steps=_steps(one)) for one in stages]


def _program(one: StageShapes) -> tuple:
    """What decides the program of a stage."""
    plan = one.plan
    return plan.length, plan.batch_size, plan.microbatches, plan.objective, plan.format, repr(plan.optimizer)


def _steps(one: StageShapes) -> int | None:
    return None if one.plan.steps == experiments.UNKNOWN_STEPS else one.plan.steps


class Compiled(NamedTuple):
    """A step that was compiled, or does not fit.

    Attributes:
      program: None if it does not fit.
      temporary, code: bytes.
      required: bytes that the compiler says a step needs that does not fit; 0 where it does not say.
      seconds: that compiling took.
    """

    program: Program | None
    temporary: int
    code: int
    required: int
    seconds: float


def plan_stages(stages: Sequence[StageShapes], mesh: Mesh, hardware: Hardware) -> list[StepPlan]:
    """The plans of stages, whose steps are compiled for `mesh`, all at the same time."""
    batches = [shapes.batch(one, mesh) for one in stages]
    with use_mesh(mesh):
        lowered = [_step(one, mesh).lower(one.state, batch) for one, batch in zip(stages, batches, strict=True)]
    with quiet() as messages, uncached(), ThreadPoolExecutor(len(stages)) as pool:
        compiled = list(pool.map(_compile, lowered))
        printed = messages()
    return [_stage(one, batch, program, mesh, hardware, printed)
            for one, batch, program in zip(stages, batches, compiled, strict=True)]


def _step(one: StageShapes, mesh: Mesh) -> Any:
    stage = one.stage
    return compiled_train_step(stage.objective, stage.optimizer, mesh, stage.batch_size, 0, stage.microbatches)


def _compile(lowered: jax.stages.Lowered) -> Compiled:
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


def _stage(
    one: StageShapes, batch: Tree, compiled: Compiled, mesh: Mesh, hardware: Hardware, printed: str,
) -> StepPlan:
    stage, program, chip = one.stage, compiled.program, hardware.chip
    traced = flops.of_train_step(stage.objective, stage.optimizer, batch, stage.microbatches)
    collectives = program.collectives(mesh.size) if program else []
    transfers = _transfers(collectives, mesh, list(mesh.devices.flat), hardware)
    executed = program.flops() if program else traced / mesh.size
    traffic = program.traffic() if program else 0.0
    made = StepPlan(
        one.plan.name, _steps(one), stage.batch_size, one.plan.length, stage.microbatches, dict(mesh.shape),
        _memory(one, batch, compiled, int(chip.memory)), float(traced), executed, traffic, transfers,
        max(executed, traced / mesh.size) / chip.flops, traffic / chip.bandwidth,
        max(sum(each.seconds for each in transfers if each.slices == slow) for slow in (False, True)), (),
        compiled.seconds)
    return made._replace(warnings=tuple(_warnings(made, one, mesh, printed, program)))


def _memory(one: StageShapes, batch: Tree, compiled: Compiled, available: int) -> Memory:
    parameters, inputs = _on_chip(trainable(one.state.params)), _on_chip(batch)
    frozen = _on_chip(one.state.params) - parameters
    optimizer = _on_chip((one.state.opt_state, one.state.carry))
    held, temporary = parameters + frozen + optimizer + inputs, compiled.temporary
    total = held + temporary + compiled.code
    if compiled.program is None:
        temporary, total = max(compiled.required - held, 0), max(compiled.required, held, available + 1)
    saved = min(compiled.program.saved_bytes(), temporary) if compiled.program else 0
    return Memory(parameters, frozen, optimizer, inputs, saved, temporary - saved, compiled.code, total, available)


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """A context in which JAX compiles everything anew: the text of a program from its compilation cache lacks the names
    of operations."""
    previous = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", previous)
        compilation_cache.reset_cache()


def _on_chip(tree: Any) -> int:
    """Bytes of arrays on one chip."""
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
    """Collectives by kind and axes, those that take longest first."""
    groups: dict[tuple, list[Collective]] = {}
    for each in collectives:
        crossing = len({slice_of(order[i]) for i in each.groups[0]}) > 1
        groups.setdefault((each.opcode, axes_of(each.groups, mesh), crossing), []).append(each)
    transfers = [Transfer(opcode, axes, sum(each.times for each in group), sum(each.sent for each in group),
                          max(each.bytes for each in group),
                          sum(each.sent / hardware.speed(each.groups, order) for each in group), crossing)
                 for (opcode, axes, crossing), group in groups.items()]
    return tuple(sorted(transfers, key=lambda each: -each.seconds))


def axes_of(groups: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which the devices of a group differ."""
    coordinates = np.unravel_index(groups, tuple(mesh.shape.values()))
    return tuple(name for name, values in zip(mesh.shape, coordinates, strict=True)
                 if (values != values[:, :1]).any())


def _warnings(made: StepPlan, one: StageShapes, mesh: Mesh, printed: str, program: Program | None) -> list[str]:
    lines, memory = [], made.memory
    if not made.fits:
        lines.append(f"it needs {byte_size(memory.needed)} of a chip's {byte_size(memory.available)}")
    if made.executed > REPEATED * made.flops / mesh.size:
        lines.append(f"each chip computes {made.executed * mesh.size / made.flops:.2f} times its share of the matrix "
                     "products: part of them is replicated; use sizes that the mesh divides, or a smaller tensor axis")
    replicated = [path for path, x in flatten(trainable(one.state.params)).items()
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
    """The cost of a whole run, from the lower bound of each step's time; None where something is not known."""

    hours: float  # from start to end, at least
    chip_hours: float  # hours times the number of chips
    kwh: float | None  # energy of the chips by the PUE
    co2_kg: float | None  # of that energy
    price: float | None  # in the currency of `cost.price_per_hour`
    utilisation: float  # the largest possible fraction of the chips' peak, recomputation included


def cost_of_run(plans: Sequence[StepPlan], hardware: Hardware, config: CostConfig = CostConfig()) -> PlannedCost | None:
    """The cost of a run with these stages, or None if the number of its steps is not known."""
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
