"""Checks of the network on this machine: mesh, memory and disk."""

import math
import resource
from collections.abc import Mapping
from pathlib import Path

import jax
from jax.sharding import AbstractMesh

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.host import INSTALLED, available_memory, check_address_space, check_backend, unused_accelerator
from lmrep.core.messages import byte_size
from lmrep.core.sharding import RULES, abstract_mesh, describe_sizes, divides
from lmrep.data import tokenizers
from lmrep.doctor.findings import WARNING, Result
from lmrep.experiment import checks, shapes
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.shapes import StageShapes
from lmrep.planning import hardware, plan, table
from lmrep.planning.hardware import Hardware
from lmrep.storage import trial
from lmrep.training.state import saved, specs_of, trainable

CROWDED = 0.7  # if the training state takes a larger fraction of a device's memory, activations may not fit


def address_space() -> Result:
    """Checks that the limit of the address space leaves JAX enough."""
    check_address_space()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return Result("not limited" if limit == resource.RLIM_INFINITY else byte_size(limit))


def platform() -> Result:
    """Checks that JAX computes on the configured platform, and uses the accelerators of this machine."""
    check_backend.__wrapped__()
    device = jax.devices()[0]
    text = f"{jax.device_count()} x {device.device_kind} ({device.platform})"
    if sign := unused_accelerator():
        return Result(f"{text}, though this machine seems to have accelerators ({sign}): {INSTALLED}", mark=WARNING)
    return Result(text)


def topology(name: str) -> Result:
    """Checks that the hardware that `lmrep plan` has under a name can be compiled for here. The value is the
    Hardware."""
    found = hardware.find(name)
    return Result(f"{len(found.devices)} x {found.chip.title} ({name}). {found.note}".rstrip(". "), found)


def mesh(devices: int, processes: int, experiment: Experiment, topology: Hardware | None) -> Result:
    """Checks that the mesh fits the devices, here or of a topology. The value is an AbstractMesh: the devices may be on
    another machine."""
    sizes = experiments.check_mesh(experiment, devices)
    checks.check_processes(sizes, devices, processes)
    here = "" if topology or devices == jax.device_count() else f", of which {jax.device_count()} are here"
    kind, cpu = (topology.chip.title, topology.name.startswith("cpu")) if topology else (
        jax.devices()[0].device_kind, jax.devices()[0].platform == "cpu")
    text = f"{describe_sizes(sizes)} on {devices} x {kind}{here}, {experiment.execution.dtype}"
    layout = abstract_mesh(sizes)
    if experiment.execution.dtype == "float32" and not cpu:
        return Result(f"{text}: accelerators compute matrix products in bfloat16 several times as fast as in float32; "
                      "set execution.dtype=bfloat16 unless float32 is what you want", layout, WARNING)
    if layout.size == devices:
        return Result(text, layout)
    return Result(f"{text}: {layout.size} of {devices} devices are used; mesh.data=-1 would use all of them", layout,
                  WARNING)


def network(experiment: Experiment, loaded: tokenizers.Tokenizer | None, layout: AbstractMesh | None) -> Result:
    """Checks that network, objectives and optimizers can be built and keep their contracts, and that each stage can
    start from the previous one. The value is a list of StageShapes."""
    layout = layout or abstract_mesh((1, 1, 1))
    shapes.check_contracts(experiment)
    stages = shapes.without_data(experiment, loaded.vocabulary if loaded else None, layout)
    specs = {path: spec for stage in stages for path, spec in P.flatten(specs_of(stage.stage.objective)).items()}
    unsharded = sorted(f"{path} {spec.shape}" for path, spec in specs.items() if not all(
        divides(layout, RULES.get(axis), size) for axis, size in zip(spec.axes, spec.shape, strict=True)))
    first = stages[0].stage.objective
    text = f"{P.count(first.specs):,} parameters"
    for name, part in first.frozen.items():
        text += f", and {P.count(part):,} of {name} ({experiment.frozen[name]}), which are not trained"
    if unsharded:
        text += (f"; replicated on all devices, because the mesh does not divide them: {', '.join(unsharded[:3])}"
                 f"{' ...' if unsharded[3:] else ''}; choose sizes that it divides, such as another model.vocab")
        return Result(text, stages, WARNING)
    return Result(text, stages)


def memory(
    compiling: bool, experiment: Experiment, stages: list[StageShapes], layout: AbstractMesh,
    loaded: tokenizers.Tokenizer | None, topology: Hardware | None,
) -> Result:
    """Checks that the training step fits the memory of a device, here or of a topology. It is compiled if `compiling`
    is set and all devices are here or of a topology; otherwise only parameters, gradients and optimizer state are
    counted."""
    state = state_memory(stages, layout, topology)
    if not compiling or not (topology or layout.size <= jax.local_device_count()):
        return state
    devices = topology or hardware.here(layout.size)
    plans = plan.plan(experiment, devices, loaded.vocabulary if loaded else None)
    worst, total = max(plans, key=lambda plan: plan.memory.needed), plan.cost_of_run(plans, devices)
    parts, text = worst.memory, f"a step takes {table.fit([worst])} on each {devices.chip.title}"
    text += (f": parameters and optimizer state {byte_size(parts.parameters + parts.optimizer)}, activations "
             f"{byte_size(parts.activations)}, other temporaries {byte_size(parts.temporaries)}")
    if total and total.hours and not topology:  # lmrep plan has the time there
        text += f"; the run takes at least {table.hours(total.hours)}, at the peak of its matrix products"
    if worst.fits:
        return Result(text)
    raise UserError(f"{text}; recompute more (execution.remat), accumulate (microbatches), or use more devices "
                    "(mesh.fsdp, mesh.tensor) or a smaller model")


def state_memory(stages: list[StageShapes], layout: AbstractMesh, topology: Hardware | None = None) -> Result:
    """Checks that parameters, gradients and optimizer state fit the memory of a device, here or of a topology."""
    def per_device(stage: StageShapes) -> int:
        gradients = trainable(stage.state.params)  # of the same sizes
        return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
                   for x in jax.tree.leaves((stage.state, gradients)))

    needed, device = max(map(per_device, stages)), jax.local_devices()[0]
    limit, where = (device.memory_stats() or {}).get("bytes_limit"), f"each {device.device_kind} has"
    text = f"parameters, gradients and optimizer state take {byte_size(needed)} a device"
    if topology:
        limit, where = topology.chip.memory, f"each {topology.chip.title} has"
    elif limit is None and device.platform == "cpu" and layout.size <= jax.device_count():
        needed, limit, where = needed * layout.size, available_memory(), "the host has free for all of them"
    if limit is None:
        return Result(f"{text}, activations not counted; the memory of the device is not known: lmrep plan "
                      "--topology=... counts all, for hardware that is not here")
    text += f"; {where} {byte_size(limit)}; activations are not counted"
    fix = ("shard them over more devices (mesh.fsdp, mesh.tensor), or use a smaller model or an optimizer with a "
           "smaller state (optimizer.name=adafactor)")
    if needed > limit:
        raise UserError(f"{text}; {fix}")
    return Result(text) if needed <= CROWDED * limit else Result(f"{text}, and may not fit: {fix}", True, WARNING)


def checkpoints(directory: Path, experiment: Experiment, stages: list[StageShapes]) -> Result:
    """Checks that checkpoints fit on the workdir's disk. The value is as of `disk_space`."""
    config = experiment.checkpoint
    size = max(trial.checkpoint_size(saved(stage.state)) for stage in stages)
    number = config.keep + config.keep_best + len(config.steps) + 1  # one is being saved while the others exist
    existing = sum(path.stat().st_size for path in (directory / "checkpoints").rglob("*") if path.is_file())
    needed = max(size, number * size - existing)
    subject = f"up to {number} checkpoints of {byte_size(size)} need"
    return disk_space(subject, directory, needed, {}, "--workdir, or lower checkpoint.keep and checkpoint.keep_best, "
                      "or name fewer checkpoint.steps")


def disk_space(subject: str, directory: Path, needed: int, taken: Mapping[int, int], alternatives: str) -> Result:
    """Checks that the disk of `directory` has `needed` bytes free beside those that are `taken`, {device number of the
    file system: bytes}. The value is such a mapping.

    Args:
      subject: what needs the space, with its verb, for the message.
      alternatives: what the user may change instead.
    """
    free, system = trial.space(directory)
    line = f"{subject} {byte_size(needed)} more in {directory}, where {byte_size(free)} are free"
    if system in taken:
        free -= taken[system]
        line += f", of which checkpoints will take {byte_size(taken[system])}"
    if needed > free:
        raise UserError(f"{line}; free space, or choose another {alternatives}")
    return Result(line, {system: needed})
