"""Checks of the labelled examples of a task."""

from pathlib import Path

from lmrep.data.records import tfds
from lmrep.doctor.findings import OK, WARNING, Result
from lmrep.experiment import build
from lmrep.experiment.config import Experiment, resolve_stages
from lmrep.experiment.inspection import label_statistics
from lmrep.experiment.record import Data
from lmrep.experiment.task_data import data_of, task_of
from lmrep.inference.evaluate_task import read_files


def examples(experiment: Experiment) -> Result:
    """Checks that every split can be read and tokenized, and has the fields of the task. The value is the `Data`."""
    for data in data_of(experiment).values():
        tfds.check_present(data)
    prepared = build.prepare_data(experiment, Path())  # nothing is stored
    counts = ", ".join(f"{split} {len(records):,}" for split, records in prepared.records.items())
    steps = prepared.experiment.steps
    if sources := label_statistics(prepared)["train"].get("sources"):
        counts += " of " + ", ".join(f"{name} ({source['fraction']:.1%})" for name, source in sources.items())
    text = f"{counts}; at most {max(store.length for store in prepared.splits.values()):,} tokens; {steps:,} steps"
    if "validation" not in prepared.splits:
        return Result(f"{text}; without data.validation, nothing measures how well a run learns", prepared, WARNING)
    return Result(text, prepared, OK)


def evaluation_files(files: str, experiment: Experiment, prepared: Data) -> Result:
    """Checks that files for `lmrep evaluate` can be read, and have the fields of the task."""
    task, config = task_of(experiment), resolve_stages(prepared.experiment)[0].objective
    records = read_files(experiment, files)
    for record in records:
        task.check(config, record)
    return Result(f"{files}: {len(records):,} examples")
