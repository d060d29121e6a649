"""Checks of the labelled examples of a task."""

from lmrep.data import records
from lmrep.data.records import tfds
from lmrep.doctor.findings import OK, WARNING, Result
from lmrep.experiment.config import TaskExperiment, resolve_stages
from lmrep.experiment.task_data import PreparedTask, prepare_task
from lmrep.inference.task_evaluation import other_files
from lmrep.tasks import TASKS


def examples(experiment: TaskExperiment) -> Result:
    """Every split can be read, fits the task, and becomes tokens. Gives a PreparedTask."""
    tfds.check_present(experiment.data)
    prepared = prepare_task(experiment, experiment.tokenizer)
    counts = ", ".join(f"{split} {len(own):,}" for split, own in prepared.records.items())
    steps = prepared.experiment.steps
    text = f"{counts}; at most {max(store.length for store in prepared.stores.values()):,} tokens; {steps:,} steps"
    if "validation" not in prepared.stores:
        return Result(f"{text}; without data.validation, nothing measures how well a run learns", prepared, WARNING)
    return Result(text, prepared, OK)


def other(files: str, experiment: TaskExperiment, prepared: PreparedTask) -> Result:
    """Other files for `lmrep evaluate` can be read, and fit the task."""
    task, config = TASKS[experiment.objective["name"]], resolve_stages(prepared.experiment)[0].objective
    found = records.read(other_files(experiment.data, files, experiment.name), "test", (*task.fields, *task.targets))
    for record in found:
        task.check(config, record)
    return Result(f"{files}: {len(found):,} examples")
