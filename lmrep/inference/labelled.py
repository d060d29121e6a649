"""Predictions of a run that was trained for a task: for records of files, and for texts."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep.core.files import write_text
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.experiment.config import stage_at
from lmrep.experiment.task_data import tokenized
from lmrep.inference.encode import BATCH, BATCH_ELSEWHERE
from lmrep.tasks import TASKS
from lmrep.tasks.base import Result, collate

IN_FLIGHT = 4  # batches that the device may be ahead of the host


def predict_records(run: Any, own: Sequence[Record], name: str = "texts", examples: Examples | None = None) -> Result:
    """The predictions of a run for records, and their metrics if all records have targets.

    Args:
      run: a loaded one (`lmrep.inference.load.Run`) that was trained for a task.
      own: the records.
      name: of them, for logs.
      examples: their examples, where they have been made.

    Raises:
      UserError: the task cannot use a record; a text is too long, or not Unicode.
    """
    stage = stage_at(run.experiment, run.step)
    task = TASKS[stage.objective_name]
    if examples is None:
        for record in own:
            task.check(stage.objective, record)
        examples = tokenized(run.experiment, run.model, run.tokenizer, own, name)
    outputs, pending, predict = [], [], _compiled(run)
    for batch in batches(examples):
        places = {name: batch[name] for name in ("unit", "first", "last")}
        pending.append((places, predict(run.params, batch)))
        if len(pending) > IN_FLIGHT:
            outputs.append(_fetched(*pending.pop(0)))
    outputs += [_fetched(*each) for each in pending]
    return task.score(stage.objective, own, examples.units, collate(outputs, examples.units))


def batches(examples: Examples) -> Iterator[dict[str, np.ndarray]]:
    """All sequences, sorted by length, in batches of as many tokens as suit the backend; empty sequences fill them."""
    tokens = BATCH.get(jax.default_backend(), BATCH_ELSEWHERE)
    order = np.argsort(examples.lengths, kind="stable")
    while len(order):
        length = examples.batch_length(order[:1])
        fitting = int(np.searchsorted(examples.lengths[order], length, "right"))
        size = max(1, tokens // (length * max(1, examples.group)))
        while size // 4 >= fitting:  # few shapes are compiled
            size //= 4
        chosen = order[: min(size, fitting)]
        order = order[len(chosen):]
        yield examples.gather(np.pad(chosen, (0, size - len(chosen)), constant_values=-1), length)


@functools.lru_cache(maxsize=4)
def _compiled(run: Any) -> Callable:
    return jax.jit(run.objective.predict)


def _fetched(places: dict, outputs: dict) -> dict:
    return {**jax.device_get(outputs), **places}


def write_predictions(path: Path, own: Sequence[Record], result: Result) -> None:
    """Predictions as JSON Lines: the record's id and fields, and under `prediction` what was predicted."""
    lines = [json.dumps({"id": record.id, **record.fields, "prediction": prediction}, ensure_ascii=False)
             for record, prediction in zip(own, result.predictions, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")
