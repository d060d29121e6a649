"""What a planned run takes: time, chip-hours, energy and price."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import StepPlan


class Cost(NamedTuple):
    """Of a whole run, from the lower bounds of its step times.

    Attributes:
      hours: of all chips together, at least.
      chip_hours: hours times the number of chips.
      kilowatt_hours: of the chips, without cooling; None where their power is not known.
      price: in the currency of the price per chip-hour; None without one.
      utilisation: the largest possible fraction of the chips' peak.
    """

    hours: float
    chip_hours: float
    kilowatt_hours: float | None
    price: float | None
    utilisation: float


def of_run(plans: Sequence[StepPlan], hardware: Hardware, price: float = 0.0, watts: float = 0.0) -> Cost | None:
    """The cost of a run, or None if the number of its steps is not known.

    Args:
      plans: of its stages.
      hardware: that they were made for.
      price: of a chip-hour; 0: unknown.
      watts: of a chip under load; 0: as the hardware's table says.
    """
    if any(plan.steps is None for plan in plans):
        return None
    seconds = sum(plan.steps * plan.seconds for plan in plans)
    chips = math.prod(plans[0].mesh.values())
    chip_hours, power = chips * seconds / 3600, watts or hardware.chip.watts
    products = sum(plan.steps * plan.flops for plan in plans)
    return Cost(seconds / 3600, chip_hours, chip_hours * power / 1000 if power else None,
                chip_hours * price if price else None, products / (chips * hardware.chip.flops * seconds))
