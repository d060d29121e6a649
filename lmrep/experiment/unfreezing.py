"""Which layers of a pretrained network a task trains, and when (`config.unfreezing`): the stages that follow from it.

A stage begins with the parameters of the one before, and with a schedule and moments of its own. Layers that it does
not train have multiplier 0, so that they do not change. Running statistics are updated in every stage.
"""

from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.params import Tree, flatten
from lmrep.experiment.record import StageConfig, TaskExperiment
from lmrep.optimizers.parameters import is_stacked

HEAD = "objective/*"
EVERYTHING = {"encoder": "encoder", "objective": "objective"}  # continues, with new moments
LATER_RATE = 0.1  # of chain_thaw's stages after the first, in Howard and Ruder's Table 7


def stages(experiment: TaskExperiment, specs: Tree) -> tuple[StageConfig, ...]:
    """Returns the stages of an experiment whose network has these specs. Raises UserError where it has no layers by
    number."""
    way, layers = experiment.unfreezing, groups(specs)
    names = ["embedding", *(f"layer {i}" for i in range(len(layers) - 1))]
    every = [*layers, [HEAD]]
    if way != "last" and len(layers) < 2:
        raise UserError(f"config.unfreezing is {way}, and the network {experiment.model['name']!r} has no layers by "
                        "number; set it to full or last")
    top = [(f"{name} and above", every[i:]) for i, name in reversed([*enumerate(names)])]
    trained = {
        "last": [("head", every[-1:])],
        "gradual": [("head", every[-1:]), *top[:-1], ("all", every)],
        "gradual_released": [("head", every[-1:]), top[0], ("all", every)],
        "chain_thaw": [("head", every[-1:]), *((name, [group]) for name, group in zip(names, layers, strict=True)),
                       ("all", every)],
    }[way]
    each = 1 / len(trained)
    if way != "chain_thaw" and experiment.epochs:
        each = min(each, 1 / experiment.epochs)
    return tuple(StageConfig(
        name, fraction=each if i < len(trained) - 1 else 1 - each * i, start=EVERYTHING if i else None,
        optimizer=_optimizer(experiment, i, len(trained)) | {"multipliers": {
            pattern: 0.0 for group in every if group not in now for pattern in group}})
        for i, (name, now) in enumerate(trained))


def _optimizer(experiment: TaskExperiment, i: int, count: int) -> dict[str, Any]:
    """Returns the fields of the optimizer that differ in stage `i`."""
    optimizer = experiment.optimizer
    if experiment.unfreezing == "chain_thaw" and i:
        return {"learning_rate": optimizer.learning_rate * LATER_RATE}
    # The released code has use_clr=(8, 3) but for the last stage.
    early = experiment.unfreezing == "gradual_released" and i < count - 1
    return {"schedule": {"cut_fraction": 1 / 3}} if early and hasattr(optimizer.schedule, "cut_fraction") else {}


def groups(specs: Tree) -> list[list[str]]:
    """Returns patterns of a network's parameters: of what is below its layers, and of each layer. What is above them,
    as a final norm, goes with the last layer."""
    layers = flatten(specs.get("layers", {}))
    count = max([spec.shape[0] for spec in layers.values() if is_stacked(spec)] + [
        int(number) + 1 for path in layers if (number := path.partition("/")[0]).isdecimal()], default=0)
    below, above = [], []
    for name, part in specs.items():
        if name != "layers":
            pattern = f"encoder/{name}/*" if isinstance(part, dict) else f"encoder/{name}"
            (above if name.startswith("final") else below).append(pattern)
    by_number = [[f"encoder/layers/{i}/*"] for i in range(count)]
    if by_number:
        by_number[-1] += above
    return [below, *by_number]
