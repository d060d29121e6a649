"""Objectives and formats as choices of a config: those of pretraining, and those of tasks."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from lmrep.core.errors import UserError
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import FormatDef
from lmrep.experiment.record import Experiment, TaskExperiment
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Capability, ObjectiveDef
from lmrep.tasks import TASKS
from lmrep.tasks.base import FORMAT

EXAMPLES = {"examples": FORMAT}  # the format of labelled examples


class _Objectives(Mapping):
    """`OBJECTIVES` and the objectives of `TASKS`, as they are when it is read."""

    def __getitem__(self, name: str) -> ObjectiveDef:
        return OBJECTIVES[name] if name in OBJECTIVES else TASKS[name].objective

    def __iter__(self) -> Iterator[str]:
        return iter((*OBJECTIVES, *TASKS))

    def __len__(self) -> int:
        return len(OBJECTIVES) + len(TASKS)


ALL_OBJECTIVES: Mapping[str, ObjectiveDef] = _Objectives()
ALL_FORMATS: Mapping[str, FormatDef] = ChainMap(FORMATS, EXAMPLES)


def formats_for(objective: str) -> Mapping[str, FormatDef]:
    """The formats that an objective may be combined with: a task has labelled examples, all others documents."""
    return EXAMPLES if objective in TASKS else FORMATS


def record_of(config: Mapping[str, Any]) -> type[Experiment]:
    """The record of a config, by whether its objective is a task, which is trained on labelled examples."""
    objective = config.get("objective")
    task = isinstance(objective, Mapping | ml_collections.ConfigDict) and objective.get("name") in [*TASKS]
    return TaskExperiment if task else Experiment


def capability(objective: str, name: str) -> Capability:
    """The capability `name` of the models of an objective. Raises UserError if they do not have it."""
    able = {key: each for key, row in ALL_OBJECTIVES.items() for each in row.capabilities if each.name == name}
    if objective not in able:
        summary = next((each.summary for each in able.values()), "unknown")
        raise UserError(f"the run was trained with objective {objective!r}, which has no capability {name!r} "
                        f"({summary}); objectives that have it: {', '.join(able) or 'none'}")
    return able[objective]
