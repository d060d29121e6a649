"""Decides how many steps a run takes in a given time, by the speed of its first steps."""

import itertools
import statistics
import time
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from lmrep.core.errors import UserError
from lmrep.core.progress import duration
from lmrep.core.sharding import batch_sharding, use_mesh
from lmrep.training.evaluation import Evaluator
from lmrep.training.inputs import local_indices, to_global
from lmrep.training.stages import Stage, start_state
from lmrep.training.step import compiled_train_step

SECONDS, STEPS = 20.0, 5  # of measuring: at most this long, or a tenth of the budget, and at least so many steps
VALIDATIONS, VALIDATION_TIME = 10, 0.05  # at most, and the fraction of the time that they may take


class Speed(NamedTuple):
    """The times of a stage, in seconds."""

    step: float  # the median, which a program that ran beside some steps does not change
    validation: float  # 0 without validation data
    spent: float  # until these were known, most of it for compiling


def measure(stage: Stage, mesh: Mesh, seed: int, evaluation_seed: int, budget: float) -> Speed:
    """Measures a stage by its first steps, whose results are dropped. All processes call it. `budget` is in seconds."""
    began, sharding = time.monotonic(), batch_sharding(mesh)
    indices = local_indices(sharding, stage.batch_size)
    with use_mesh(mesh):
        step = compiled_train_step(stage.objective, stage.optimizer, mesh, stage.batch_size, seed, stage.microbatches)
        state, ends, validation = start_state(stage, None, mesh, seed), [], 0.0
        for batch in stage.batches(indices, 0, stage.steps):
            state, metrics = step(state, to_global(batch, indices, sharding, stage.batch_size))
            jax.block_until_ready(metrics["loss"])
            ends.append(time.monotonic())
            if len(ends) > STEPS and ends[-1] - ends[0] > min(SECONDS, budget / 10):
                break
        seconds = statistics.median(end - start for start, end in itertools.pairwise(ends))  # the first compiles
        if stage.validation is not None:
            evaluator = Evaluator(stage.objective, mesh, stage.batch_size, evaluation_seed, stage.microbatches)
            compiled = iter(stage.validation(evaluator.indices))
            evaluator(state.params, [next(compiled)], state.carry.shared)
            began_validation = time.monotonic()
            evaluator(state.params, stage.validation(evaluator.indices), state.carry.shared)
            validation = time.monotonic() - began_validation
    return Speed(seconds, validation, time.monotonic() - began)


def decide(speed: Speed, budget: float) -> tuple[int, int]:
    """Returns (the number of steps, the steps between validations) that fit into `budget` seconds.

    The run compiles once more, so that what measuring took is counted twice. Raises UserError if nothing is left.
    """
    left = budget - 2 * speed.spent
    validations = VALIDATIONS if not speed.validation else max(
        1, min(VALIDATIONS, int(VALIDATION_TIME * budget / speed.validation)))
    steps = int((left - (validations + 1) * speed.validation) / speed.step)
    if steps < STEPS:
        needed = 2 * speed.spent + 2 * speed.validation + 100 * speed.step
        raise UserError(f"config.budget is {duration(budget)}, of which compiling and validating take "
                        f"{duration(2 * speed.spent + 2 * speed.validation)}; give at least {duration(needed)}")
    return steps, -(-steps // validations)
