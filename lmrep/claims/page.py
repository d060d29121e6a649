"""The page of a claim, for the appendix of a paper: its table, a figure, commands, times, versions and machine. The
figure is SVG: the values of each row, its difference from another row, and the paper's figures."""

import html
import math
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lmrep.analysis.report.page import environment
from lmrep.claims.claim import ORDERS
from lmrep.claims.results import Results, RowResult, cells, compared, notes, seeds, state
from lmrep.claims.statistics import CONTRADICTED, ORDERING, REPRODUCED
from lmrep.core.messages import counted
from lmrep.core.progress import duration

# Colours that can be told apart on white and on black; text and axes have the colour of the text around the figure.
VALUE, COLOURS, UNKNOWN = "#3b82d8", {REPRODUCED: "#1f9d61", ORDERING: "#c08a1e", CONTRADICTED: "#d64541"}, "#7b8794"
WIDTH, NARROW = 960, 340  # units, which are pixels at full size
LABEL, GAP, LINE, TOP, BOTTOM = 210, 28, 14, 54, 34
LABEL_LENGTH, NARROW_LABEL_LENGTH = 32, 50  # characters of a line of a row's title
TICKS = 5  # at most

Mark = Callable[[RowResult, Callable[[float], float], float], Iterator[str]]  # (row, x of a value, y) -> elements


class _Panel(NamedTuple):
    """A part of the figure, with an axis of its own: what it shows, the numbers on it, and how it draws a row."""

    title: str
    numbers: Sequence[float]
    draw: Mark


def page(results: Results) -> str:
    """Returns the HTML of the page, one file without external references."""
    times = {name: f"{duration(statistics.fmean(run['seconds'].values()))} a run, mean of "
                   f"{counted(len(run['seconds']), 'seed')}" for name, run in results["runs"].items() if run["seconds"]}
    return environment().get_template("claim.html.j2").render(
        claim=results, state=state(results), cells=cells(results), notes=notes(results), times=times,
        wide=figure(results), narrow=figure(results, narrow=True))


def figure(results: Results, narrow: bool = False) -> str:
    """Draws the figure, with the panels beside each other, or one beneath the other on a narrow screen."""
    rows, panels = [*results["rows"].values()], _panels(results)
    width, left = (NARROW, 8) if narrow else (WIDTH, LABEL)
    size = width - 16 if narrow else (width - LABEL - 8) / len(panels) - GAP
    parts, top, bottom = [], 0, 0
    for i, panel in enumerate(panels):
        verdicts = not narrow or panel.draw is _difference  # which are written once
        titles = [textwrap.wrap(row["title"], NARROW_LABEL_LENGTH if narrow else LABEL_LENGTH)
                  + [row["verdict"]] * bool(row["verdict"] and verdicts) for row in rows]
        heights = [LINE * len(lines) + (32 if narrow else 12) for lines in titles]
        place = (left, bottom, size) if narrow else (left + GAP / 2 + i * (size + GAP), top, size)
        bottom = place[1] + TOP + sum(heights) + BOTTOM
        parts += _panel(panel, rows, titles if narrow or not i else [], heights, place, narrow)
    name = html.escape(f"{results['paper']}: {results['statement']}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" width="{width}" role="img" '
            f'aria-label="{name}" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">\n'
            + "\n".join(parts) + "\n</svg>\n")


def _panels(results: Results) -> list[_Panel]:
    """Returns the panels that have something to show."""
    rows, number = results["rows"].values(), counted(len(seeds(results)), "seed")
    other = f"from {compared(results) or 'the compared row'}"
    panels = [
        _Panel(f"{results['measure']['title']}, {number}", [
            number for row in rows for number in map(float, row["values"].values())], _values),
        _Panel(f"difference {other}, 95\u00a0% interval", [0.0, *(
            number for row in rows for number in (*map(float, row["difference"] or ()), _edge(row)))], _difference),
        _Panel(f"paper: {results['published']}" if results["published"] else "paper",
               [row["published"] for row in rows if row["published"] is not None], _published)]
    return [panel for panel in panels if any(map(math.isfinite, panel.numbers)) and panel.numbers != [0.0]]


def _edge(row: RowResult) -> float:
    """Returns where the claimed side of a row begins: at 0, or at the margin beyond it."""
    return -ORDERS[row["claimed"]] * row["margin"] if row["claimed"] else 0.0


def _panel(
    panel: _Panel, rows: Sequence[RowResult], titles: Sequence[Sequence[str]], heights: Sequence[float],
    place: tuple[float, float, float], narrow: bool,
) -> Iterator[str]:
    """Yields the elements of a panel at (x, y) of a width."""
    left, top, width = place
    finite = [number for number in panel.numbers if math.isfinite(number)]
    low, high = min(finite), max(finite)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - margin, high + margin
    bottom = top + TOP + sum(heights)

    def scale(value: float) -> float:
        return round(left + width * (min(max(value, low), high) - low) / (high - low), 1)

    for i, line in enumerate(textwrap.wrap(panel.title, int(width / 7.3), max_lines=3, placeholder=" …")):
        yield _text(left, top + 12 + LINE * i, line, 'style="font-weight:600"')
    for tick in _ticks(low, high):
        yield (f'<line x1="{scale(tick)}" x2="{scale(tick)}" y1="{top + TOP}" y2="{bottom}" stroke="currentColor" '
               f'opacity="{0.55 if tick == 0 and panel.draw is _difference else 0.15}"/>')
        yield _text(scale(tick), bottom + 16, f"{tick:.4g}", 'text-anchor="middle" opacity="0.75"')
    y = top + TOP
    for i, (row, height) in enumerate(zip(rows, heights, strict=True)):
        for j, line in enumerate(titles[i] if titles else ()):
            colour = f'style="fill:{_colour(row)}"' if line == row["verdict"] else ""
            yield _text(left if narrow else 0, y + 14 + LINE * j, line, colour)
        yield from panel.draw(row, scale, y + (height - 16 if narrow else height / 2))
        y += height
    yield f'<line x1="{left}" x2="{left + width:.1f}" y1="{bottom}" y2="{bottom}" stroke="currentColor" opacity="0.5"/>'


def _values(row: RowResult, scale: Callable[[float], float], y: float) -> Iterator[str]:
    """Yields a point for each seed, and a line at the mean."""
    values = [value for value in map(float, row["values"].values()) if math.isfinite(value)]
    if values:
        x = scale(statistics.fmean(values))
        yield f'<line x1="{x}" x2="{x}" y1="{y - 8}" y2="{y + 8}" stroke="{VALUE}" stroke-width="2"/>'
    for value in values:
        yield f'<circle cx="{scale(value)}" cy="{y}" r="3.5" fill="{VALUE}" fill-opacity="0.6"/>'


def _difference(row: RowResult, scale: Callable[[float], float], y: float) -> Iterator[str]:
    """Yields the claimed side, shaded, and the mean difference with its interval."""
    if row["claimed"]:
        ends = sorted((scale(_edge(row)), scale(ORDERS[row["claimed"]] * math.inf)))
        yield (f'<rect x="{ends[0]}" width="{ends[1] - ends[0]:.1f}" y="{y - 10}" height="20" fill="currentColor" '
               'opacity="0.09"/>')
    difference, low, high = map(float, row["difference"] or (math.nan,) * 3)
    if math.isfinite(low):
        yield (f'<line x1="{scale(low)}" x2="{scale(high)}" y1="{y}" y2="{y}" stroke="{_colour(row)}" '
               'stroke-width="2.5"/>')
    if math.isfinite(difference):
        yield f'<circle cx="{scale(difference)}" cy="{y}" r="4.5" fill="{_colour(row)}"/>'


def _published(row: RowResult, scale: Callable[[float], float], y: float) -> Iterator[str]:
    """Yields the paper's figure."""
    if row["published"] is not None:
        yield (f'<circle cx="{scale(row["published"])}" cy="{y}" r="4" fill="none" stroke="currentColor" '
               'stroke-width="1.8"/>')


def _colour(row: RowResult) -> str:
    return COLOURS.get(row["verdict"], UNKNOWN)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers on an axis."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(step * i, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
