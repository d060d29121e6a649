"""A plan as JSON, which the report shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmrep.planning import table
from lmrep.planning.cost import PlannedCost
from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import StepPlan
from lmrep.planning.search import Choice

FILE = "plan.json"


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
