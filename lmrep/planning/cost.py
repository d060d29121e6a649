"""What a planned run takes: time, chip-hours, energy, CO2 and price."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import StepPlan
from lmrep.planning.run_cost import kilowatt_hours
from lmrep.training.config import CostConfig


class PlannedCost(NamedTuple):
    """Of a whole run, from the lower bounds of its step times; None where something is not known.

    Attributes:
      hours: from start to end, at least.
      chip_hours: hours times the number of chips.
      kwh: energy of the chips by the PUE.
      co2_kg: of that energy.
      price: in the currency of `cost.price_per_hour`.
      utilisation: the largest possible fraction of the chips' peak, recomputation included.
    """

    hours: float
    chip_hours: float
    kwh: float | None
    co2_kg: float | None
    price: float | None
    utilisation: float


def of_run(plans: Sequence[StepPlan], hardware: Hardware, config: CostConfig = CostConfig()) -> PlannedCost | None:
    """The cost of a run with these stages, or None if the number of its steps is not known."""
    if any(plan.steps is None for plan in plans):
        return None
    seconds = sum(plan.steps * plan.seconds for plan in plans)
    chips = math.prod(plans[0].mesh.values())
    chip_hours, watts = chips * seconds / 3600, config.device_watts or hardware.chip.watts
    kwh = kilowatt_hours(3600 * chip_hours * watts, config.pue) if watts else None
    products = sum(plan.steps * plan.flops for plan in plans)
    return PlannedCost(seconds / 3600, chip_hours, kwh, None if kwh is None else kwh * config.grid,
                chip_hours * config.price_per_hour if config.price_per_hour else None,
                products / (chips * hardware.chip.flops * seconds))
