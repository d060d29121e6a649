"""Predictions of several runs of one task, averaged: of forward and backward language models (Howard and Ruder, 2018),
or of runs with several seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.records.encoding import Units
from lmrep.experiment.config import stage_at
from lmrep.tasks.base import Outputs, mean_by_example


def _log_mean(y: np.ndarray) -> np.ndarray:
    """Returns log(mean(exp(y))) over the first axis."""
    return np.logaddexp.reduce(y, 0) - np.log(len(y))


# outputs of a text, of all runs [r, ...] -> their mean: of probabilities, or of numbers
MEANS = {
    "log_probabilities": lambda y: _log_mean(y - np.logaddexp.reduce(y, -1, keepdims=True)),
    "logits": lambda y: _log_mean(-np.logaddexp(0, -y)) - _log_mean(-np.logaddexp(0, y)),  # of several labels
    "value": lambda y: y.mean(0),
}


def check(run: Any, others: Sequence[Any]) -> None:
    """Raises UserError unless all runs (`lmrep.inference.run.Run`) are of one task, with the same labels."""
    def facts(each: Any) -> tuple[str, tuple[str, ...]]:
        stage = stage_at(each.experiment, each.step)
        return stage.objective_name, tuple(getattr(stage.objective, "labels", ()))

    for other in others:
        if facts(other) != facts(run):
            name, labels = facts(other)
            raise UserError(f"ensemble has {other.directory}, a run of {name}" + f" with the labels "
                            f"{', '.join(labels)}" * bool(labels) + f", and {run.directory} is another one; give runs "
                            "of the same task and labels")


def averaged(parts: Sequence[tuple[Units, Outputs]], examples: int, task: str) -> tuple[Units, Outputs]:
    """Averages what several runs computed for the same records.

    Args:
      parts: of each run, the units of the records, and the outputs for them. Runs may divide a text into other windows.
      examples: the number of records.
      task: its name, for messages.

    Returns:
      (units of one run, one for each record; the mean of the runs' probabilities, or of their numbers). Windows of a
      text are first averaged as the task does.

    Raises:
      UserError: the task's outputs are not of whole texts.
    """
    units, arrays = parts[0]
    of_texts = all(np.ndim(values[0]) < 2 and len({*map(np.shape, values)}) == 1 for values in arrays.values())
    if not arrays.keys() <= MEANS.keys() or not of_texts:
        raise UserError(f"an ensemble averages the predictions for whole texts, and task {task!r} has others; leave "
                        "ensemble out")
    means = {name: MEANS[name](np.stack([
        mean_by_example(np.stack(outputs[name]).astype(np.float64), of_run.example, examples)
        for of_run, outputs in parts])) for name in arrays}
    return units._replace(example=np.arange(examples)), {name: [*values] for name, values in means.items()}
