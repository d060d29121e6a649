"""The figure of a claim, and the page that it is on."""

import copy
import re
from xml.etree import ElementTree

import pytest

from lmrep.claims.page import figure, page
from tests.claims.sample import RESULTS

SVG = "{http://www.w3.org/2000/svg}"


def draw(results=RESULTS, narrow=False):
    """The elements of the figure by name."""
    root = ElementTree.fromstring(figure(results, narrow))
    return {name: root.findall(f"{SVG}{name}") for name in ("text", "circle", "rect", "line")}


@pytest.mark.parametrize("narrow", [False, True])
def test_all_values_differences_and_published_figures_are_drawn_in_order(narrow):
    """Also where a row has one seed, or none; a title is broken into lines."""
    parts = draw(narrow=narrow)
    seeds = [float(one.get("cx")) for one in parts["circle"] if one.get("r") == "3.5"]
    assert len(seeds) == 7 and seeds[0] < seeds[1] < seeds[2] < seeds[6] and max(seeds[3:6]) < seeds[0]
    means = [one for one in parts["circle"] if one.get("r") == "4.5"]
    intervals = [one for one in parts["line"] if one.get("stroke-width") == "2.5"]
    assert len(means) == 2 and len(intervals) == 1
    assert float(intervals[0].get("x1")) < float(means[0].get("cx")) < float(intervals[0].get("x2"))
    assert len([one for one in parts["circle"] if one.get("fill") == "none"]) == 2
    words = " ".join(one.text for one in parts["text"])
    assert "the base & co" in words and "far too long" not in {one.text for one in parts["text"]}
    assert words.count("not resolved at this scale") == 2 and words.count("reproduced") == 1
    width, height = map(float, re.search(r'viewBox="0 0 (\d+) ([\d.]+)"', figure(RESULTS, narrow)).groups())
    for one in (*parts["circle"], *parts["text"]):
        assert 0 <= float(one.get("cx") or one.get("x")) <= width
        assert 0 <= float(one.get("cy") or one.get("y")) <= height


def test_the_claimed_side_is_shaded_from_the_margin():
    parts = draw()
    wide, deep, lost = parts["rect"]
    zero = float(wide.get("x")) + float(wide.get("width"))
    assert float(lost.get("x")) == pytest.approx(zero, abs=0.2)  # above 0, where "wide" is below it
    assert float(deep.get("x")) < zero < float(deep.get("x")) + float(deep.get("width"))


def test_a_figure_without_published_figures_or_results_has_fewer_panels():
    results = copy.deepcopy(RESULTS)
    for row in results["rows"].values():
        row |= {"published": None}
    assert "paper" not in figure(results) and "difference from" in figure(results)
    for row in results["rows"].values():
        row |= {"values": {}, "difference": None, "claimed": ""}
    assert not draw(results)["circle"]
    results["rows"]["base"]["values"] = {"0": "nan", "1": 2.0}
    assert len(draw(results)["circle"]) == 1


def test_the_page_has_the_table_the_figure_and_the_commands():
    text = page(RESULTS)
    assert "<h1>50 % of {it} is a_part #1 &lt;b&gt;.</h1>" in text and "<b>." not in text
    assert text.count("<svg") == 2 and "1 reproduced, 2 not resolved at this scale" in text
    for command in (RESULTS["command"], *(run["commands"][0] for run in RESULTS["runs"].values())):
        assert f"<pre>{command}</pre>" in text
    assert "1:00 a run, mean of 1 seed" in text and "jax 0.10.2" in text and "98.33 %" in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)
