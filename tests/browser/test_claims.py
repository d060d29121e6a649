"""The page of a claim in headless Chromium: it loads without errors or requests, follows the colour scheme, and fits a
phone."""

import pytest

from lmrep.claims.page import page
from tests.claims.sample import RESULTS


@pytest.fixture
def visit(open_page, tmp_path):
    (tmp_path / "report.html").write_text(page(RESULTS))
    return lambda width, **options: open_page(tmp_path / "report.html", {"width": width, "height": 900}, **options)


@pytest.mark.parametrize("width", [1200, 400, 320])
def test_the_page_fits_and_shows_one_figure(visit, width):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = [one for one in page.locator(".figure svg").all() if one.is_visible()]
    assert len(shown) == 1
    box = shown[0].bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    for text in shown[0].locator("text").all():  # in one piece, and large enough to read
        inside = text.bounding_box()
        assert inside["x"] + inside["width"] <= width and inside["height"] > 9


def test_labels_and_titles_do_not_overlap(visit):
    figure = visit(1200).locator(".figure.wide svg")
    boxes = [one.bounding_box() for one in figure.locator("text").all()]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert (a["x"] + a["width"] <= b["x"] + 0.5 or b["x"] + b["width"] <= a["x"] + 0.5
                    or a["y"] + a["height"] <= b["y"] + 2.5 or b["y"] + b["height"] <= a["y"] + 2.5)


def test_it_follows_the_colour_scheme(visit):
    colours = [visit(1200, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
               for scheme in ("light", "dark")]
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
