"""Searches the settings of a run that change only its speed and memory: mesh, recomputation and accumulation."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from lmrep.core.errors import UserError
from lmrep.core.sharding import AXES, make_mesh
from lmrep.experiment import config as experiments
from lmrep.experiment import resolve, shapes
from lmrep.experiment.config import Experiment
from lmrep.layers.stack import REMAT
from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import StepPlan, plan

MAX_TENSOR = 8  # chips along the tensor axis, whose communication is on the path of every layer
MICROBATCHES = (1, 2, 4, 8)
MAX_CHANGES = 6  # that `first_that_fits` compiles


class Choice(NamedTuple):
    """A setting and its plans."""

    fields: Mapping[str, Any]  # {dotted path of a config field: value}
    experiment: Experiment  # the experiment with these fields
    plans: list[StepPlan]  # of its stages

    @property
    def flags(self) -> str:
        """The fields as flags of the command line."""
        return " ".join(f"--config.{name}={value}" for name, value in self.fields.items())

    @property
    def fits(self) -> bool:
        """Whether all stages fit the memory of a chip."""
        return all(plan.fits for plan in self.plans)

    @property
    def seconds(self) -> float:
        """The lower bound of the time of all steps; where the number of steps is not known, of one step."""
        return sum((plan.steps or 1) * plan.seconds for plan in self.plans)


def search(
    config: Any, hardware: Hardware, limit: int = 12, progress: Callable[[int, int, Choice], None] = lambda *_: None,
) -> list[Choice]:
    """Plans settings of a run. Returns those that fit before the others, and faster ones first.

    For each mesh the setting that recomputes least is planned first. If it does not fit, settings that need less memory
    follow, until one fits. Meshes that communicate least, by a rough estimate, are tried first.

    Args:
      config: the config of the experiment.
      hardware: the devices to plan for.
      limit: the largest number of settings to compile.
      progress: called after each setting, with its number, the limit and the choice.

    Raises:
      UserError: no mesh divides the devices, the batch and the network.
    """
    choices: list[Choice] = []
    meshes = list(_meshes(config, hardware))
    if not meshes:
        raise UserError(f"no mesh of {len(hardware.devices)} devices fits the batch and the network; change batch_size")
    pending = [_settings(sizes) for sizes in meshes]
    while pending and len(choices) < limit:
        for settings in list(pending):
            if len(choices) == limit:
                break
            fields = next(settings, None)
            choice = fields and _choice(config, fields, hardware)
            if choice:
                choices.append(choice)
                progress(len(choices), limit, choice)
            if fields is None or (choice and choice.fits):
                pending.remove(settings)
    return sorted(choices, key=lambda choice: (not choice.fits, choice.seconds))


def first_that_fits(
    config: Any, plans: Sequence[StepPlan], hardware: Hardware, progress: Callable[[Choice], None] = lambda _: None,
) -> Choice | None:
    """Returns the smallest change that makes a run fit: recomputation, accumulation or sharding; None if none does.

    Args:
      config: the config of the experiment.
      plans: plans of its stages, of which at least one does not fit.
      hardware: the devices to plan for.
      progress: called after each change.
    """
    chips, worst = len(hardware.devices), max(plans, key=lambda plan: plan.memory.needed)
    state = 2 * worst.memory.parameters + worst.memory.optimizer  # with gradients
    slices, shards = hardware.slices, chips // worst.mesh["tensor"] // hardware.slices
    fsdp = {"mesh.data": slices, "mesh.fsdp": shards} if worst.mesh["fsdp"] < shards else {}
    accumulated = [{"execution.remat": "full"},
                   *({"execution.remat": "full", "microbatches": worst.microbatches * 2**i} for i in (1, 2, 3, 4))]
    changes = [fsdp, *({**fsdp, **change} for change in accumulated)] if state > worst.memory.available / 2 else [
        *accumulated, fsdp, *({**fsdp, **change} for change in accumulated)]
    possible = filter(None, (_choice(config, fields, hardware) for fields in changes if fields))
    for choice in itertools.islice(possible, MAX_CHANGES):
        progress(choice)
        if choice.fits:
            return choice
    return None


def _choice(config: Any, fields: Mapping[str, Any], hardware: Hardware) -> Choice | None:
    """Plans the experiment with these fields; None where `_experiment` is."""
    experiment = _experiment(config, fields, hardware)
    return experiment and Choice(fields, experiment, plan(experiment, hardware))


def _experiment(config: Any, fields: Mapping[str, Any], hardware: Hardware) -> Experiment | None:
    """Returns the experiment with these fields; None where they are not possible: for example microbatches that the
    mesh does not divide, or an axis other than `data` between slices."""
    try:
        experiment = experiments.parse(with_fields(config, fields))
        data, *_ = experiments.check_mesh(experiment, len(hardware.devices))
    except UserError:
        return None
    return None if data % hardware.slices else experiment


def with_fields(config: Any, fields: Mapping[str, Any]) -> Any:
    """Returns a copy of the config with these fields."""
    return resolve.apply_overrides(config.copy_and_resolve_references(), [(k, str(v)) for k, v in fields.items()])


def _settings(sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Iterates over settings for a mesh, from the fastest one to the one that needs the least memory."""
    mesh = {f"mesh.{axis}": size for axis, size in zip(AXES, sizes, strict=True)}
    for microbatches, remat in itertools.product(MICROBATCHES, REMAT):
        yield {**mesh, "execution.remat": remat, "microbatches": microbatches}


def _meshes(config: Any, hardware: Hardware) -> list[tuple[int, ...]]:
    """Returns the meshes that are possible for the experiment, those that communicate least first."""
    sequence = config.mesh.get("sequence", 1)
    chips, ranks = len(hardware.devices) // sequence, {}
    powers = [2**i for i in range(chips.bit_length()) if chips % 2**i == 0]
    for fsdp, tensor in itertools.product(powers, powers):
        if chips % (fsdp * tensor) or tensor > MAX_TENSOR:
            continue
        sizes = (chips // fsdp // tensor, fsdp, tensor)
        fields = {f"mesh.{axis}": size for axis, size in zip(AXES, sizes, strict=True)}
        experiment = _experiment(config, fields, hardware)
        if experiment is None:
            continue
        mesh = make_mesh(*sizes, sequence, devices=hardware.devices)
        state = max(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
                        for x in jax.tree.leaves(stage.state)) for stage in shapes.without_data(experiment, None, mesh))
        # States that leave no memory at all come last; tensor axes communicate activations of every layer.
        ranks[sizes] = (state > hardware.chip.memory > 0, tensor, fsdp > 1, -fsdp if state > hardware.chip.memory / 4
                        else fsdp)
    return sorted(ranks, key=ranks.get)
