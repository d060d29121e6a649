"""The data of a task's experiment, one set or a mixture of several (`config.sources`): their records, configs and
proportions."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import read
from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.data.mixture import block_counts, mixing_weights
from lmrep.data.records import Record
from lmrep.data.records.mixture import MixedExamples
from lmrep.experiment import contracts
from lmrep.experiment.record import ALL_OBJECTIVES, Experiment
from lmrep.tasks import TASKS
from lmrep.tasks.base import TaskDef
from lmrep.tasks.mixture import config_of_source, mixed

NAME = re.compile(r"[\w.+-]+")
CHARACTERS = 4  # of a token, about: before there is a tokenizer, the examples of unlabelled text can only be estimated


class TaskSource(NamedTuple):
    """A data set of a mixture."""

    name: str  # of its metrics
    weight: float  # its number of examples, in proportion to the other sources
    data: records.Config  # its files
    objective: Any  # the task's config for it


def task_sources(experiment: Experiment) -> list[TaskSource]:
    """The data sets that are mixed, with every field resolved; of `data` alone, that one, with the name ""."""
    if not experiment.sources:
        return [TaskSource("", 1.0, experiment.data, _objective(experiment, {}, "config.objective"))]
    data = dataclasses.asdict(experiment.data)
    return [TaskSource(source.name or str(i), source.weight,
                       read(records.Config, data | source.data, f"config.sources.{i}.data"),
                       _objective(experiment, source.objective, f"config.sources.{i}.objective"))
            for i, source in enumerate(experiment.sources)]


def _objective(experiment: Experiment, changes: Mapping[str, Any], where: str) -> Any:
    """The task's config with the fields `changes`, whose path in messages is `where`."""
    fields = {name: value for name, value in experiment.objective.items() if name != "name"}
    return read(TASKS[experiment.objective["name"]].objective.config, {**fields, **changes}, where)


def check(experiment: Experiment) -> None:
    """Raises UserError for a mixture that the task cannot be trained on."""
    name = experiment.objective["name"]
    task = TASKS[name]
    if not (differ := task.templates.source_fields):
        able = ", ".join(other for other, row in TASKS.items() if row.templates.source_fields)
        raise UserError(f"config.sources is set, and the task {name} has a head for one data set; tasks that data sets "
                        f"can be mixed for: {able}. Remove sources, or give the task's data as config.data")
    own = task_sources(experiment)
    names = [source.name for source in own]
    for i, source in enumerate(experiment.sources):
        if not NAME.fullmatch(names[i]) or names.index(names[i]) < i:
            raise UserError(f"config.sources.{i}.name is {names[i]!r}; expected another name for each source, of "
                            "letters, digits and _.+-, for its metrics")
        if differing := sorted(source.objective.keys() - {*differ}):
            raise UserError(f"config.sources.{i}.objective.{differing[0]} is set, which all sources share; fields that "
                            f"may differ: {', '.join(differ)}. Set config.objective.{differing[0]}")
        task.objective.check(own[i].objective)
    if all(task.templates.unlabelled(source.objective) for source in own):
        raise UserError("no source of config.sources has targets, so that there is no task; add one, or pretrain on "
                        "this text with an objective such as span_corruption")


def task_of(experiment: Experiment) -> TaskDef:
    """The task; of a mixture one that goes by the config of each record's source."""
    name = experiment.objective["name"]
    task = contracts.checked_task(name, TASKS[name])
    return mixed(task, _configs(experiment)) if experiment.sources else task


def _configs(experiment: Experiment) -> dict[str, Any]:
    return {source.name: source.objective for source in task_sources(experiment)}


def objective_of(experiment: Experiment, source: str, base: Any) -> Any:
    """The task's config for the records of a source; `base` for those of none. Raises UserError for an unknown one."""
    if source and not experiment.sources:
        raise UserError(f"the source {source!r} is given, and the run has a single data set; leave it out")
    return config_of_source(_configs(experiment), source, base)


def config_of(experiment: Experiment, source: str = "") -> Any:
    """The task's config for the records of a source, or of none, where no stage changes it. Raises UserError for an
    unknown one."""
    return objective_of(experiment, source, _objective(experiment, {}, "config.objective"))


def metrics(experiment: Any, objective: str) -> dict[str, Any]:
    """The metrics of an objective of the experiment, by name."""
    return dict((task_of(experiment).objective if experiment.labelled else ALL_OBJECTIVES[objective]).metrics)


def data_of(experiment: Experiment, source: str = "") -> dict[str, records.Config]:
    """{source: its data}, of one source or of all; {"": data} where there is only `data`. Raises UserError for an
    unknown one."""
    if source:
        objective_of(experiment, source, None)  # refuses an unknown one
    return {each.name: each.data for each in task_sources(experiment) if source in ("", each.name)}


def splits(experiment: Experiment) -> tuple[str, ...]:
    """The splits that the data, or one of the sources, has."""
    own = data_of(experiment).values()
    return tuple(split for split in records.SPLITS if any(records.files_of(data, split) for data in own))


def files(experiment: Experiment, split: str) -> str:
    """The files of a split, for people."""
    return ", ".join(filter(None, (records.files_of(data, split) for data in data_of(experiment).values())))


def read_split(experiment: Experiment, split: str, examples: int | None = 0, source: str = "") -> list[Record]:
    """The records of a split, source after source, each with its name; `task_data.labelled` makes examples of those
    that have no targets.

    Args:
      experiment: whose data.
      split: one that it has.
      examples: of each source at most, at equal distances; 0 or None: all.
      source: the only one that is read; "" for all.

    Raises:
      UserError: as `records.read`; no training data.
    """
    found: list[Record] = []
    for i, (name, data) in enumerate(data_of(experiment, source).items()):
        if not records.files_of(data, split):
            if split == "train":
                where = f"sources.{i}.data" if name else "data"
                raise UserError(f"{where}.train is empty; give the training examples: --config.{where}.train=train.tsv")
            continue
        found += read_data(experiment, data, split, examples, name)
    return found


def read_data(
    experiment: Experiment, data: records.Config, split: str, examples: int | None = 0, source: str = ""
) -> list[Record]:
    """The records of a split of data that has the form of the run's, or of its source `source`, with their targets.
    `examples` and errors are those of `read_split`; unlabelled texts are read in full, since examples are made of them
    later."""
    task, config = task_of(experiment), config_of(experiment, source)
    own = records.spread(records.read(data, split, task.needed(config)),
                         0 if task.templates.unlabelled(config) else examples)
    return [task.templates.convert(config, record._replace(source=source)) for record in own]


def training_texts(experiment: Experiment, task: TaskDef, config: Any, own: Sequence[Record]) -> list[str]:
    """The texts that a tokenizer is trained on: of a mixture, of each source in its proportion as many as there are."""
    by_source = _by_source(experiment, own)
    groups = [[*_texts(task, config, group)] for group in by_source]
    if not experiment.sources:
        return groups[0]
    characters = [sum(map(len, texts)) for texts in groups]
    unlabelled = task.templates.unlabelled
    counts = [size // (CHARACTERS * experiment.length) + 1 if unlabelled(source.objective) else len(group)
              for source, group, size in zip(task_sources(experiment), by_source, characters, strict=True)]
    weights = np.array(_weights(experiment, counts))
    budgets = weights / weights.sum() * sum(characters)
    return [text for texts, budget, size in zip(groups, budgets, characters, strict=True)
            for text in records.spread(texts, max(1, round(min(1.0, budget / max(1, size)) * len(texts))))]


def _texts(task: TaskDef, config: Any, own: Sequence[Record]):
    reads = task.reads
    names = reads.texts or reads.inputs + tuple(name for name in reads.targets if name in records.TEXTS)
    for record in own:
        if task.templates.texts:
            yield from task.templates.texts(config, record)
            continue
        for name in names:
            value = record.fields.get(name, ())
            yield from [value] if isinstance(value, str) else [" ".join(map(str, value))] if value else []


def _by_source(experiment: Experiment, own: Sequence[Record]) -> list[list[Record]]:
    return [[record for record in own if record.source == source.name] for source in task_sources(experiment)]


def _weights(experiment: Experiment, counts: Sequence[int]) -> list[float]:
    """The rates at which the examples of sources are shown, given their numbers, not normalized."""
    return mixing_weights([source.weight for source in task_sources(experiment)], counts, experiment.temperature,
                          experiment.size_cap)


def with_proportions(experiment: Experiment, own: Sequence[Record], examples: MixedExamples) -> MixedExamples:
    """The training examples of a mixture in its proportions. They are those of examples: where sequences are packed, a
    source whose sequences hold more examples gives fewer of them."""
    sequences = np.diff(examples.bounds)
    counts = [len(group) for group in _by_source(experiment, own)]
    return examples.with_counts(block_counts(
        [float(weight * n / count)
         for weight, n, count in zip(_weights(experiment, counts), sequences, counts, strict=True)]))
