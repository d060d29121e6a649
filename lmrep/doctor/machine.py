"""Checks of the network on this machine: mesh, memory and disk."""

import math
import resource
from pathlib import Path
from typing import NamedTuple

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
from lmrep.storage import trial
from lmrep.training.state import saved, specs_of, trainable

CROWDED = 0.7  # fraction of a device's memory, taken by the state, from which activations may not fit


def address_space() -> Result:
    """The limit of the address space leaves JAX enough."""
    check_address_space()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return Result("not limited" if limit == resource.RLIM_INFINITY else byte_size(limit))


def platform() -> Result:
    """JAX computes on the platform that it was told to, and on the accelerators of this machine."""
    check_backend.__wrapped__()
    device = jax.devices()[0]
    text = f"{jax.device_count()} x {device.device_kind} ({device.platform})"
    if sign := unused_accelerator():
        return Result(f"{text}, though this machine seems to have accelerators ({sign}): {INSTALLED}", mark=WARNING)
    return Result(text)


def mesh(devices: int, processes: int, experiment: Experiment) -> Result:
    """The mesh fits the devices. Gives an AbstractMesh: the devices may be on another machine."""
    sizes = experiments.check_mesh(experiment, devices)
    checks.check_processes(sizes, devices, processes)
    here = "" if devices == jax.device_count() else f", of which {jax.device_count()} are here"
    text = (f"{describe_sizes(sizes)} on {devices} x {jax.devices()[0].device_kind}{here}, "
            f"{experiment.execution.dtype}")
    layout = abstract_mesh(sizes)
    if experiment.execution.dtype == "float32" and jax.devices()[0].platform != "cpu":
        return Result(f"{text}: accelerators compute matrix products in bfloat16 several times as fast as in float32; "
                      "set execution.dtype=bfloat16 unless float32 is what you want", layout, WARNING)
    if layout.size == devices:
        return Result(text, layout)
    return Result(f"{text}: {layout.size} of {devices} devices are used; mesh.data=-1 would use all of them", layout,
                  WARNING)


def network(experiment: Experiment, loaded: tokenizers.Tokenizer | None, layout: AbstractMesh | None) -> Result:
    """The network, objectives and optimizers can be built and keep their contracts, and each stage can start from the
    previous one. Gives a list of StageShapes."""
    layout = layout or abstract_mesh((1, 1, 1))
    shapes.check_contracts(experiment)
    stages = shapes.without_data(experiment, loaded.vocabulary if loaded else None, layout)
    specs = {path: spec for one in stages for path, spec in P.flatten(specs_of(one.stage.objective)).items()}
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
    loaded: tokenizers.Tokenizer | None,
) -> Result:
    """The training step fits each device. It is compiled where `compiling` and where all devices are here; else
    parameters, gradients and optimizer state are counted alone."""
    state = state_memory(stages, layout)
    if not compiling or layout.size > jax.local_device_count():
        return state
    devices = hardware.here(layout.size)
    plans = plan.plan(experiment, devices, loaded.vocabulary if loaded else None)
    worst, total = max(plans, key=lambda each: each.memory.needed), plan.cost_of_run(plans, devices)
    kept, text = worst.memory, f"a step takes {table.fit([worst])} on each {devices.chip.title}"
    text += (f": parameters and optimizer state {byte_size(kept.parameters + kept.optimizer)}, activations "
             f"{byte_size(kept.activations)}, other temporaries {byte_size(kept.temporaries)}")
    if total and total.hours:
        text += f"; the run takes at least {table.hours(total.hours)}, at the peak of its matrix products"
    if worst.fits:
        return Result(text)
    raise UserError(f"{text}; recompute more (execution.remat), accumulate (microbatches), or use more devices "
                    "(mesh.fsdp, mesh.tensor) or a smaller model")


def state_memory(stages: list[StageShapes], layout: AbstractMesh) -> Result:
    """Parameters, gradients and optimizer state fit each device."""
    def per_device(one: StageShapes) -> int:
        gradients = trainable(one.state.params)  # as large
        return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
                   for x in jax.tree.leaves((one.state, gradients)))

    needed, device = max(map(per_device, stages)), jax.local_devices()[0]
    limit, where = (device.memory_stats() or {}).get("bytes_limit"), f"each {device.device_kind} has"
    text = f"parameters, gradients and optimizer state take {byte_size(needed)} a device"
    if limit is None and device.platform == "cpu" and layout.size <= jax.device_count():
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


class Taken(NamedTuple):
    """Bytes that something will take on the file system with device number `system`."""

    system: int
    bytes: int


def checkpoints(directory: Path, experiment: Experiment, stages: list[StageShapes]) -> Result:
    """Checkpoints fit on the workdir's disk. Gives a Taken."""
    keeping = experiment.checkpoint
    one = max(trial.checkpoint_size(saved(one.state)) for one in stages)
    number = keeping.keep + keeping.keep_best + 1  # one is being saved while the others exist
    held = sum(path.stat().st_size for path in (directory / "checkpoints").rglob("*") if path.is_file())
    needed = max(one, number * one - held)
    what = f"up to {number} checkpoints of {byte_size(one)} need"
    return disk_space(what, directory, needed, None, "--workdir, or lower checkpoint.keep and checkpoint.keep_best")


def disk_space(what: str, directory: Path, needed: int, taken: Taken | None, alternatives: str) -> Result:
    """The disk of `directory` has the `needed` bytes free that `what` says, beside those that are `taken`. Gives a
    Taken."""
    free, system = trial.space(directory)
    line = f"{what} {byte_size(needed)} more in {directory}, where {byte_size(free)} are free"
    if taken and taken.system == system:
        free -= taken.bytes
        line += f", of which checkpoints will take {byte_size(taken.bytes)}"
    if needed > free:
        raise UserError(f"{line}; free space, or choose another {alternatives}")
    return Result(line, Taken(system, needed))
