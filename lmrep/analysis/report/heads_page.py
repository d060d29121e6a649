"""The attention heads that `lmrep heads` has measured, as a heat map, a curve and tables."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmrep.analysis import heads

CELL, LEFT, TOP = 44, 34, 22  # of the heat map, in pixels
WIDTH, HEIGHT, MARGIN = 420, 220, 46  # of the curve


class Cell(NamedTuple):
    """A head in the heat map: position, opacity from 0 to 1, importance, and what is shown when pointed at."""

    x: int
    y: int
    opacity: float
    text: str
    title: str


class Line(NamedTuple):
    """A line of the curve: name, its colour's number, points for SVG."""

    name: str
    color: int
    points: str


class Tick(NamedTuple):
    """A tick of an axis: where it is, and its number."""

    at: float
    text: str


class Section(NamedTuple):
    """What the page shows of a run's heads."""

    description: str
    cells: list[Cell]
    rows: list[Tick]
    columns: list[Tick]
    size: tuple[int, int]
    metric: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    tables: list[heads.Table]


def section(result: Mapping[str, Any]) -> Section:
    """The section of a result of `heads.analyse`."""
    importance = result["importance"]
    largest = max((value for own in importance for value in own), default=0) or 1
    cells = [Cell(LEFT + CELL * head, TOP + CELL * layer, max(0.0, importance[layer][head] / largest),
                  f"{importance[layer][head]:.2g}", f"layer {layer}, head {head}: {importance[layer][head]:.4g}")
             for layer, head in heads.all_heads(result["kept"])]
    layers, width = len(importance), len(importance[0])
    rows = [Tick(TOP + CELL * (i + 0.5), str(i)) for i in range(layers)]
    columns = [Tick(LEFT + CELL * (i + 0.5), str(i)) for i in range(width)]
    lines, x_ticks, y_ticks = _curve(result) if result.get("curve") else ([], [], [])
    return Section(heads.describe(result), cells, rows, columns, (LEFT + CELL * width, TOP + CELL * layers),
                   result["metric"], lines, x_ticks, y_ticks, heads.tables(result))


def _curve(result: Mapping[str, Any]) -> tuple[list[Line], list[Tick], list[Tick]]:
    curves = [("least important first", 0, result["curve"]), *(
        ("random order", 1, curve) for curve in result["random"])]
    scores = [point["score"] for _, _, curve in curves for point in curve]
    low, high = min(scores), max(scores)
    span = (high - low) or 1.0

    def x(fraction: float) -> float:
        return MARGIN + fraction * (WIDTH - 2 * MARGIN)

    def y(score: float) -> float:
        return HEIGHT - MARGIN + (score - low) / span * (2 * MARGIN - HEIGHT)

    def points(curve: Sequence[Mapping[str, Any]]) -> str:
        return " ".join(f"{x(point['fraction']):.1f},{y(point['score']):.1f}" for point in curve)

    lines = [Line(name, color, points(curve)) for name, color, curve in reversed(curves)]
    return (lines, [Tick(x(i / 5), f"{i / 5:.0%}") for i in range(6)],
            [Tick(y(low + span * i / 3), f"{low + span * i / 3:.3g}") for i in range(4)])
