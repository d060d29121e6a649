"""The attention heads that `lmrep heads` has measured, as a heat map, a curve and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmrep.analysis import heads

CELL, LEFT, TOP = 44, 34, 22  # of the heat map, in pixels
WIDTH, HEIGHT, MARGIN = 420, 220, 46  # of the curve


def section(result: Mapping[str, Any]) -> dict[str, Any]:
    """What templates/heads.html.j2 shows of a result of `heads.analyse`; ticks are (position, text)."""
    importance = result["importance"]
    largest = max((value for own in importance for value in own), default=0) or 1
    layers, width = len(importance), len(importance[0])
    cells = [{"x": LEFT + CELL * head, "y": TOP + CELL * layer,
              "opacity": max(0.0, importance[layer][head] / largest), "text": f"{importance[layer][head]:.2g}",
              "title": f"layer {layer}, head {head}: {importance[layer][head]:.4g}"}
             for layer, head in heads.all_heads(result["kept"])]
    return {"description": heads.describe(result), "cells": cells, "metric": result["metric"],
            "rows": [(TOP + CELL * (i + 0.5), i) for i in range(layers)],
            "columns": [(LEFT + CELL * (i + 0.5), i) for i in range(width)],
            "size": (LEFT + CELL * width, TOP + CELL * layers), "tables": heads.tables(result),
            **(_curve(result) if result.get("curve") else {"lines": []})}


def _curve(result: Mapping[str, Any]) -> dict[str, list]:
    """Lines (name, number of the colour, points for SVG), the last one on top, and the ticks of both axes."""
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

    return {"lines": [(name, color, points(curve)) for name, color, curve in reversed(curves)],
            "x_ticks": [(x(i / 5), f"{i / 5:.0%}") for i in range(6)],
            "y_ticks": [(y(low + span * i / 3), f"{low + span * i / 3:.3g}") for i in range(4)]}
