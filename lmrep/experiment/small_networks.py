"""Chooses the numbers of a run for the size of its network and the amount of its data: `recipe=auto` of tasks, and
`budget` of pretraining.

Papers state numbers for networks of a width of 768 and more. Narrower networks need higher learning rates, and small
data sets more passes. The rows were chosen by `experiments/benchmarks/recipes.py`, which trains a grid of settings on
several data sets and networks; docs/results/recipes.md has its table.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from lmrep.experiment import fine_tuning, network_contracts
from lmrep.experiment.config import model_config, model_def
from lmrep.experiment.record import AUTO, UNKNOWN_STEPS, Experiment
from lmrep.layers.stack import Execution
from lmrep.objectives import OBJECTIVES
from lmrep.optimizers import OPTIMIZERS
from lmrep.tasks import TASKS
from lmrep.tasks.known import KNOWN

UPDATES = 1500  # of fine-tuning at least, in as many epochs as that takes
EPOCHS = (3, 30)  # at least and at most
LENGTH = 128  # tokens of a sequence in pretraining, at most


class Numbers(NamedTuple):
    """What networks up to a width are trained with."""

    width: int
    pretraining_rate: float
    pretraining_batch: int
    task_rate: float  # from pretrained parameters
    scratch_rate: float  # of a task, from random parameters
    task_batch: int = 16


# Wider networks have the numbers of papers.
TABLE = (
    Numbers(128, 4e-3, 16, 1e-3, 1e-3),
    Numbers(256, 5e-4, 16, 5e-4, 1e-3),
    Numbers(512, 3e-4, 32, 2e-4, 5e-4),
)


def numbers_for(model: Mapping[str, Any]) -> Numbers | None:
    """Returns the row of `TABLE` for the network of `config.model`; None for a wider one."""
    network = network_contracts.build_network(model["name"], model_config(model), Execution(), model["name"])
    return next((row for row in TABLE if network.width <= row.width), None)


def fields(config: ml_collections.ConfigDict) -> Mapping[str, Any]:
    """Returns {dotted path: value} of the numbers for the network of a config that asks for them: of a task with recipe
    "auto", or of a run with a `budget`."""
    row = numbers_for(config.model.to_dict())
    if config.objective.name not in TASKS:
        return _budget_fields(config, row) if config.get("budget") else {}
    if row is None or config.get("recipe") != AUTO:
        return {}
    # But for those that the page of a task has set itself.
    values = {"optimizer.learning_rate": row.task_rate if config.init else row.scratch_rate,
              "batch_size": row.task_batch, "epochs": 0.0}  # as often as `epochs` says
    paper = fine_tuning.recipe_fields(AUTO, config.name if config.name in KNOWN else "")
    present = {"optimizer.learning_rate": config.optimizer.learning_rate, "batch_size": config.batch_size,
               "epochs": config.epochs}
    return {"recipe": f"{AUTO}: width up to {row.width}", **{
        path: value for path, value in values.items() if present[path] in (paper[path], fine_tuning.TINY.get(path))}}


def _budget_fields(config: ml_collections.ConfigDict, row: Numbers | None) -> Mapping[str, Any]:
    # As many steps as the measured speed allows.
    values = {"steps": UNKNOWN_STEPS, "evaluation.every": UNKNOWN_STEPS, "checkpoint.every": UNKNOWN_STEPS,
              "optimizer.schedule.warmup": 0, "optimizer.schedule.warmup_fraction": 0.1}
    if not any(stage.get("objective") for stage in config.stages):  # which differ in their length
        values["stages"] = ()
    if row is None:
        return values
    values |= {"batch_size": row.pretraining_batch, "length": min(config.length, LENGTH),
               "optimizer.learning_rate": OPTIMIZERS[config.optimizer.name].tiny_rate}
    if config.optimizer.name == "adamw":
        values |= {"optimizer.learning_rate": row.pretraining_rate, "optimizer.betas": (0.9, 0.98),
                   "optimizer.bias_correction": True}
    changes = getattr(OBJECTIVES[config.objective.name].config, "small_budget", {})
    values |= {f"objective.{name}": value for name, value in changes.items()}
    for name in model_def(config.model.to_dict()).dropout_fields:
        if type(config.model.get(name)) is float:
            values[f"model.{name}"] = 0.0
    if "init_stddev" in config.model and not config.init:  # 0.02 is for a width of 768: attention stays flat for long
        values["model.init_stddev"] = 1 / math.sqrt(config.model.width)
    return values


def epochs(steps: int) -> float:
    """Returns how often a task reads its training examples, where an epoch has `steps` updates: as often as `UPDATES`
    take, within the bounds `EPOCHS`."""
    return float(min(max(math.ceil(UPDATES / steps), EPOCHS[0]), EPOCHS[1]))


def describe(experiment: Experiment) -> str:
    """Says which numbers of a run were chosen for it, and by what; "" if its page, config or flags state them all."""
    rate, steps = f"learning rate {experiment.optimizer.learning_rate:g}", f"{experiment.steps:,} steps"
    if experiment.budget:
        row = numbers_for(experiment.model)
        size = f"a network of width {row.width} or less" if row else "the numbers of the config file"
        return f"budget {experiment.budget}: {steps} of {experiment.batch_size} sequences, {rate}, for {size}"
    if not getattr(experiment, "recipe", "").startswith(f"{AUTO}: "):
        return ""
    start = "pretrained" if experiment.init else "random"
    extent = f"{experiment.epochs:g} epochs ({steps})" if experiment.epochs else steps  # which may be the user's
    return f"recipe={experiment.recipe}, from {start} parameters: {rate}, batches of {experiment.batch_size}, {extent}"
