"""The labelled data sets of an experiment: one, or the sources of a mixture, with the task's config and the records of
each."""

from typing import Any

from lmrep.core.errors import UserError
from lmrep.data import records as labelled_data
from lmrep.data.records import Record
from lmrep.experiment import config as experiments
from lmrep.experiment import contracts
from lmrep.experiment.config import Experiment
from lmrep.tasks import TASKS
from lmrep.tasks.base import TaskDef
from lmrep.tasks.known import KNOWN
from lmrep.tasks.mixture import config_of_source, mixed


def task_of(experiment: Experiment) -> TaskDef:
    """Returns the experiment's task; for a mixture, a task that uses the config of each record's source."""
    name = experiment.objective["name"]
    task = contracts.checked_task(name, TASKS[name])
    return mixed(task, _configs(experiment)) if experiment.sources else task


def config_of(experiment: Experiment, source: str = "") -> Any:
    """Returns the task's config for the records of a source; "" for the shared one. Raises UserError for an unknown
    source."""
    if source and not experiment.sources:
        raise UserError(f"the source {source!r} is given, and the run has a single data set; leave it out")
    return config_of_source(_configs(experiment), source, experiments.resolve_stages(experiment)[0].objective)


def _configs(experiment: Experiment) -> dict[str, Any]:
    return {data_set.name: data_set.objective for data_set in experiment.data_sets()}


def data_of(experiment: Experiment, source: str = "") -> dict[str, labelled_data.Config]:
    """Returns {source: its data config} of one source, or of all for ""; {"": config} without a mixture. Raises
    UserError for an unknown source."""
    if source:
        config_of(experiment, source)  # refuses an unknown one
    return {data_set.name: data_set.data for data_set in experiment.data_sets() if source in ("", data_set.name)}


def splits(experiment: Experiment, source: str = "") -> tuple[str, ...]:
    """Returns the splits that the data set, the source, or any of the sources, has."""
    configs = data_of(experiment, source).values()
    return tuple(split for split in labelled_data.SPLITS
                 if any(labelled_data.files_of(config, split) for config in configs))


def files(experiment: Experiment, split: str) -> str:
    """Lists the files of a split, for people."""
    return ", ".join(filter(None, (labelled_data.files_of(data, split) for data in data_of(experiment).values())))


def read_split(
    experiment: Experiment, split: str, examples: int | None = 0, source: str = "", files: str = ""
) -> list[Record]:
    """Reads the records of a split, source after source. `expand_unlabelled` adds the targets of unlabelled sources.

    Args:
      split: "train", "validation" or "test"; sources that lack a split other than "train" are skipped.
      examples: the most records of each source, taken at equal distances; 0 or None: all.
      source: the only source to read; "" for all.
      files: other files of the same form to read in place of the split: a path or glob, several between commas, or a
        split of a TFDS data set, as tfds:glue/ax:test; "" for none. They may lack targets.

    Raises:
      UserError: as `labelled_data.read`, there is no training data, or files are given without a mixture's source.
    """
    records, task, data_sets = [], task_of(experiment), data_of(experiment, source)
    if files and len(data_sets) > 1:
        raise UserError(f"--files is {files!r}, and the run was trained on {', '.join(data_sets)}; give the one that "
                        "the files are like: --source=NAME")
    for i, (name, data) in enumerate(data_sets.items()):
        if files:
            form = (KNOWN[experiment.name].tfds if experiment.name in KNOWN else None) or {}
            data, split = labelled_data.other_files(data, files, form), "test"
        if not labelled_data.files_of(data, split):
            if split == "train":
                where = f"sources.{i}.data" if name else "data"
                raise UserError(f"{where}.train is empty; give the training examples: --config.{where}.train=train.tsv")
            continue
        config = config_of(experiment, name)
        # Unlabelled texts are read in full, since `expand_unlabelled` needs them.
        read = labelled_data.spread(labelled_data.read(data, split, task.needed(config)),
                                    0 if task.templates.unlabelled(config) else examples)
        records += [task.templates.convert(config, record._replace(source=name)) for record in read]
    return records
