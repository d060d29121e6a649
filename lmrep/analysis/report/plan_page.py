"""Shows a plan of `lmrep plan` as a page, and as a section of a run's report."""

from collections.abc import Mapping
from typing import Any

from lmrep.analysis.report import assets
from lmrep.core.messages import byte_size
from lmrep.planning.table import MEMORY, TIMES, PlanRecord, duration


def render(record: Mapping[str, Any]) -> str:
    """Returns the HTML of a page about one plan, made by `lmrep.planning.table.record`."""
    return assets.environment().get_template("plan_page.html.j2").render(
        plan=section(record), name=record["config"].get("name", ""), css=assets.read("page.css"))


def section(record: PlanRecord) -> dict[str, Any]:
    """Returns the data of templates/plan.html.j2: texts, a table, and the lengths of bars from 0 to 1."""
    stages = record["stages"]
    memory = max(max(stage["memory"]["needed"], stage["memory"]["available"]) for stage in stages) or 1
    time = max(stage["seconds"] for stage in stages) or 1
    return {
        "title": record["title"], "note": record.get("hardware", {}).get("note", ""),
        "summary": record["summary"], "warnings": record["warnings"],
        "head": record["table"][0], "rows": record["table"][1:], "search": record["search"],
        "memory": [(stage["stage"], [(name, stage["memory"][field] / memory, byte_size(stage["memory"][field]))
                                     for field, name in MEMORY.items() if stage["memory"].get(field, 0) or
                                     field != "frozen"],
                    stage["memory"]["available"] / memory) for stage in stages],
        "times": [(stage["stage"], [(name, stage[field] / time, duration(stage[field]))
                                    for name, field in TIMES.items()]) for stage in stages]}
