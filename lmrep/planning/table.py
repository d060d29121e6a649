"""Formats plans as text, and as the JSON that the report shows."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from lmrep.config import json_files
from lmrep.config.json_files import Number
from lmrep.core.messages import aligned, byte_size
from lmrep.planning.hardware import Hardware
from lmrep.planning.plan import Memory, PlannedCost, StepPlan
from lmrep.planning.search import Choice

MEMORY = {"parameters": "parameters", "frozen": "frozen parameters", "optimizer": "optimizer state", "batch": "batch",
          "activations": "activations kept for the backward pass", "temporaries": "other temporaries",
          "program": "program"}

TIMES = {"matrix products": "compute", "memory": "bandwidth", "communication": "network"}
FILE = "plan.json"
MEMORY_FIELDS = {"needed", "available", *MEMORY} - {"frozen"}


def rows(plans: Sequence[StepPlan], hardware: Hardware) -> list[tuple[str, ...]]:
    """Returns the rows of the table of a plan: a name, and a cell for each stage."""
    chip, peak = hardware.chip, hardware.chip.flops

    def sent(opcode: str, axes: tuple[str, ...], slices: bool, plan: StepPlan) -> str:
        transfer = next((t for t in plan.transfers if (t.opcode, t.axes, t.slices) == (opcode, axes, slices)), None)
        return f"{byte_size(transfer.bytes)} in {transfer.count:,}" if transfer else ""

    kinds = sorted({(t.opcode, t.axes, t.slices) for plan in plans for t in plan.transfers},
                   key=lambda kind: (kind[1], kind[0]))
    cells: list[tuple[str, Callable[[StepPlan], str]]] = [
        ("stage", lambda p: p.stage or "training"),
        ("batch", lambda p: f"{p.batch_size:,} x {p.length:,}"
         + (f" in {p.microbatches} microbatches" if p.microbatches > 1 else "")),
        ("memory of a chip", lambda p: f"{byte_size(p.memory.needed)}{_of(p.memory)}{'' if p.fits else ': NO FIT'}"),
        *((f"  {name}", lambda p, field=field: byte_size(getattr(p.memory, field))) for field, name in MEMORY.items()
          if field != "frozen" or any(p.memory.frozen for p in plans)),
        ("checkpoint", lambda p: byte_size(p.checkpoint.total)),
        ("  written by a host, from a copy in its memory", lambda p: byte_size(p.checkpoint.written)),
        ("  read by a host", lambda p: byte_size(p.checkpoint.read)),
        ("FLOPs of a step", lambda p: f"{p.flops:.4g}"),
        ("  per chip", lambda p: f"{p.executed:.4g}"),
        ("memory traffic of a chip", lambda p: byte_size(p.traffic)),
        ("FLOPs per byte", lambda p: f"{p.intensity:.3g}; balanced at {peak / chip.bandwidth:.3g}"),
        *((f"{opcode} over {' x '.join(axes)}{f', between {hardware.parts}' if slices else ''}",
           partial(sent, opcode, axes, slices)) for opcode, axes, slices in kinds),
        *((f"  time at peak: {name}", lambda p, field=field: duration(getattr(p, field)))
          for name, field in TIMES.items()),
        ("step time, at least", lambda p: f"{duration(p.seconds)} ({p.limit})"),
        ("utilisation, at most", lambda p: f"{p.utilisation(peak):.0%}")]
    return [(name, *map(show, plans)) for name, show in cells]


def title(plans: Sequence[StepPlan], hardware: Hardware) -> str:
    """Describes the hardware and the mesh."""
    shape = plans[0].mesh
    slices = f", {hardware.slices} slices" if hardware.slices > 1 else ""
    slices += f", {hardware.hosts} hosts" if hardware.hosts > 1 else ""
    used, chips = math.prod(shape.values()), len(hardware.devices)
    return (f"{chips:,} x {hardware.chip.title} ({hardware.name}{slices}), mesh {' x '.join(shape)} = "
            f"{' x '.join(map(str, shape.values()))}"
            f"{f': {used} of {chips} chips are used' if used < chips else ''}")


def warnings(plans: Sequence[StepPlan]) -> list[str]:
    """Returns the warnings of all stages, without repetitions."""
    return list(dict.fromkeys(f"{f'stage {plan.stage}: ' if len(plans) > 1 else ''}{warning}"
                              for plan in plans for warning in plan.warnings))


def text(plans: Sequence[StepPlan], hardware: Hardware, cost: PlannedCost | None) -> str:
    """Formats a plan: a table with a column for each stage, the cost of the run, and warnings."""
    note = textwrap.wrap(hardware.note, 100)
    return "\n".join([title(plans, hardware), *note, "", aligned(rows(plans, hardware)), "", summary(plans, cost),
                      *(f"warning: {warning}" for warning in warnings(plans))])


def fit(plans: Sequence[StepPlan]) -> str:
    """Describes how the stage that needs most memory fits."""
    worst = max(plans, key=lambda plan: plan.memory.needed)
    return f"{byte_size(worst.memory.needed)}{_of(worst.memory)}{'' if worst.fits else ': does not fit'}"


def _of(memory: Memory) -> str:
    return f", {memory.needed / memory.available:.0%} of {byte_size(memory.available)}" if memory.available else ""


def summary(plans: Sequence[StepPlan], cost: PlannedCost | None) -> str:
    """Describes the cost of the whole run."""
    if cost is None:
        return "the number of steps depends on the data: no cost of the whole run"
    parts = [f"the run of {sum(plan.steps for plan in plans):,} steps takes at least {hours(cost.hours)}, "
             f"{cost.chip_hours:,.3g} chip-hours", f"utilisation at most {cost.utilisation:.0%}"]
    parts.append("energy unknown: the vendor does not say the chip's power (--config.cost.device_watts=N)"
                 if cost.kwh is None else f"{cost.kwh:,.3g} kWh, {cost.co2_kg:,.3g} kg of CO2")
    if cost.price is not None:
        parts.append(f"price {cost.price:,.2f}")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Formats a duration in seconds: 0.0012 -> "1.2 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def hours(number: float) -> str:
    """Formats a duration in hours: 100 -> "4.17 days"."""
    for unit, size in (("days", 24), ("hours", 1), ("minutes", 1 / 60)):
        if number >= (72 if unit == "days" else size):
            return f"{number / size:.3g} {unit}"
    return f"{number * 3600:.3g} seconds"


def ranking(choices: Sequence[tuple[str, Sequence[StepPlan]]]) -> list[tuple[str, ...]]:
    """Returns the rows of the table of `--search`, the head first: flags, step time, what bounds it, memory."""
    lines = [("", "step, at least", "bound by", "memory of a chip")]
    for flags, plans in choices:
        steps = [plan.steps or 1 for plan in plans]
        time = sum(n * plan.seconds for n, plan in zip(steps, plans, strict=True)) / sum(steps)
        fits = all(plan.fits for plan in plans)
        lines.append((flags, duration(time) if fits else "", plans[-1].limit if fits else "", fit(plans)))
    return lines


SCALING = ("chips", "mesh", "stage", "memory of a chip", "training state", "sent by a chip", "step, at least",
           "utilisation, at most")


def scaling(hardware: Hardware, plans: Sequence[StepPlan]) -> list[tuple[str, ...]]:
    """Returns the rows of the table that compares topologies, one for each stage, with the columns `SCALING`."""
    return [(f"{math.prod(p.mesh.values()):,}", " x ".join(map(str, p.mesh.values())), p.stage or "training", fit([p]),
             byte_size(p.memory.parameters + p.memory.optimizer), byte_size(sum(t.bytes for t in p.transfers)),
             f"{duration(p.seconds)} ({p.limit})", f"{p.utilisation(hardware.chip.flops):.0%}") for p in plans]


def markdown(cells: Sequence[str]) -> str:
    """Formats a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


class StageRecord(TypedDict):
    """The fields of a stage's plan that the report shows; times are in seconds, sizes in bytes."""

    stage: str
    memory: Annotated[dict[str, Number], lambda memory: "" if memory.keys() >= MEMORY_FIELDS else
                      f"the fields {', '.join(sorted(MEMORY_FIELDS))}"]
    seconds: Number
    compute: Number
    bandwidth: Number
    network: Number


class PlanRecord(TypedDict):
    """The fields of plan.json that the report shows."""

    title: str
    summary: str
    warnings: list[str]
    table: Annotated[list[list[str]], lambda rows: "" if rows else "rows"]
    search: list[list[str]]
    stages: Annotated[list[StageRecord], lambda stages: "" if stages else "stages"]
    config: dict[str, Any]


def read(path: Path) -> PlanRecord | None:
    """Reads plan.json; None where there is no file. Raises UserError if it is damaged."""
    return json_files.read(PlanRecord, path, "run lmrep plan again")


def record(
    plans: Sequence[StepPlan], hardware: Hardware, cost: PlannedCost | None, config: Mapping[str, Any],
    choices: Sequence[Choice] = (),
) -> dict[str, Any]:
    """Returns the content of plan.json: all numbers of a plan, its table, and the settings that were searched."""
    stages = [{**plan._asdict(), "memory": plan.memory._asdict(), "checkpoint": plan.checkpoint._asdict(),
               "transfers": [t._asdict() for t in plan.transfers], "fits": plan.fits, "seconds": plan.seconds,
               "limit": plan.limit, "utilisation": plan.utilisation(hardware.chip.flops), "intensity": plan.intensity}
              for plan in plans]
    return {
        "title": title(plans, hardware), "summary": summary(plans, cost),
        "warnings": warnings(plans), "table": rows(plans, hardware),
        "hardware": {"name": hardware.name, "devices": len(hardware.devices), "slices": hardware.slices,
                     "hosts": hardware.hosts, "note": hardware.note, "chip": hardware.chip._asdict()},
        "stages": stages, "cost": cost and cost._asdict(),
        "search": ranking([(choice.flags, choice.plans) for choice in choices]) if choices else [],
        "config": dict(config)}
