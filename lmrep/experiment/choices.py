"""Objectives and formats as choices of a config: those of pretraining, and those of tasks."""

from collections.abc import Mapping
from typing import Any

from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import FormatDef
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import ObjectiveDef
from lmrep.tasks import TASKS
from lmrep.tasks.base import FORMAT

ALL_OBJECTIVES: Mapping[str, ObjectiveDef] = {
    **OBJECTIVES, **{name: definition.objective for name, definition in TASKS.items()}}
ALL_FORMATS: Mapping[str, FormatDef] = {**FORMATS, "examples": FORMAT}


def formats_for(objective: str) -> Mapping[str, FormatDef]:
    """The formats that an objective may be combined with: a task has labelled examples, all others documents."""
    return {"examples": FORMAT} if objective in TASKS else FORMATS


def is_task(config: Mapping[str, Any]) -> bool:
    """Whether the objective of a config is a task, trained on labelled examples."""
    objective = config.get("objective")
    return isinstance(objective, Mapping) and objective.get("name") in TASKS
