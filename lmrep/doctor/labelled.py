"""Checks of the labelled examples of a task."""

from lmrep.data.records import tfds
from lmrep.doctor.findings import OK, WARNING, Result
from lmrep.experiment.config import TaskExperiment, resolve_stages
from lmrep.experiment.task_data import PreparedTask, prepare_task
from lmrep.experiment.task_inspection import statistics
from lmrep.experiment.task_sources import data_of, task_of
from lmrep.inference.task_evaluation import read_files


def examples(experiment: TaskExperiment) -> Result:
    """Every split can be read, fits the task, and becomes tokens. Gives a PreparedTask."""
    for data in data_of(experiment).values():
        tfds.check_present(data)
    prepared = prepare_task(experiment, experiment.tokenizer)
    counts = ", ".join(f"{split} {len(own):,}" for split, own in prepared.records.items())
    steps = prepared.experiment.steps
    if sources := statistics(prepared)["train"].get("sources"):
        counts += " of " + ", ".join(f"{name} ({each['fraction']:.1%})" for name, each in sources.items())
    text = f"{counts}; at most {max(store.length for store in prepared.stores.values()):,} tokens; {steps:,} steps"
    if "validation" not in prepared.stores:
        return Result(f"{text}; without data.validation, nothing measures how well a run learns", prepared, WARNING)
    return Result(text, prepared, OK)


def other(files: str, experiment: TaskExperiment, prepared: PreparedTask) -> Result:
    """Other files for `lmrep evaluate` can be read, and fit the task."""
    task, config = task_of(experiment), resolve_stages(prepared.experiment)[0].objective
    found = read_files(experiment, files)
    for record in found:
        task.check(config, record)
    return Result(f"{files}: {len(found):,} examples")
