"""A plan as JSON, which the report shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from lmrep.config import json_files
from lmrep.config.json_files import Number
from lmrep.planning import table
from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import PlannedCost, StepPlan
from lmrep.planning.search import Choice

FILE = "plan.json"
MEMORY = {"needed", "available", *table.MEMORY} - {"frozen"}


class StageRecord(TypedDict):
    """What the report shows of the plan of a stage; times are in seconds, sizes in bytes."""

    stage: str
    memory: Annotated[dict[str, Number], lambda memory: "" if memory.keys() >= MEMORY else
                      f"the fields {', '.join(sorted(MEMORY))}"]
    seconds: Number
    compute: Number
    bandwidth: Number
    network: Number


class PlanRecord(TypedDict):
    """plan.json, as far as the report shows it."""

    title: str
    summary: str
    warnings: list[str]
    table: Annotated[list[list[str]], lambda rows: "" if rows else "rows"]
    search: list[list[str]]
    stages: Annotated[list[StageRecord], lambda stages: "" if stages else "stages"]
    config: dict[str, Any]


def read(path: Path) -> PlanRecord | None:
    """The plan in a file; None where there is none. Raises UserError where it is damaged."""
    return json_files.read(PlanRecord, path, "run lmrep plan again")


def record(
    plans: Sequence[StepPlan], hardware: Hardware, cost: PlannedCost | None, config: Mapping[str, Any],
    choices: Sequence[Choice] = (),
) -> dict[str, Any]:
    """All numbers of a plan, its table, and the settings that were searched."""
    stages = [{**plan._asdict(), "memory": plan.memory._asdict(),
               "transfers": [each._asdict() for each in plan.transfers], "fits": plan.fits, "seconds": plan.seconds,
               "limit": plan.limit, "utilisation": plan.utilisation(hardware.chip.flops), "intensity": plan.intensity}
              for plan in plans]
    return {
        "title": table.title(plans, hardware), "summary": table.summary(plans, cost),
        "warnings": table.warnings(plans), "table": table.rows(plans, hardware),
        "hardware": {"name": hardware.name, "devices": len(hardware.devices), "slices": hardware.slices,
                     "chip": hardware.chip._asdict()},
        "stages": stages, "cost": cost and cost._asdict(),
        "search": table.ranking([(choice.flags, choice.plans) for choice in choices]) if choices else [],
        "config": dict(config)}
