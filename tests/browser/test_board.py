"""The page of all runs in headless Chromium: search, sorting, comparison."""

import pytest

from lmrep.analysis.report.page import environment, text_of

RUNS = [{"label": name, "report": "", "subject": "masked, transformer", "curve": None,
         "figures": {"Steps": (steps, str(steps)), "Accuracy": (accuracy, f"{accuracy:.0%}")} if accuracy else {},
         "config": {"seed": str(seed)}} for seed, (name, steps, accuracy) in enumerate(
             (("a", 90, 0.5), ("b", 1000, 0.25), ("a name that cannot be broken" * 4, 5, 0)))]


@pytest.fixture
def visit(open_page, tmp_path):
    (tmp_path / "board.html").write_text(environment().get_template("board.html.j2").render(
        runs=RUNS, columns=["Steps", "Accuracy"], same={"length": "64"}, script=text_of("board.js"), title="3 runs",
        configs=[run["config"] for run in RUNS]))
    return lambda width=1200: open_page(tmp_path / "board.html", {"width": width, "height": 800})


def shown(page):
    return [row.locator("th").get_attribute("data-value")[:2] for row in page.locator("#runs tbody tr").all()
            if row.is_visible()]


def test_search_reads_names_and_fields(visit):
    page = visit()
    for words, found in (("seed=1", ["b"]), ("length=64 name", ["a "]), ("nothing", []), ("", ["a", "b", "a "])):
        page.fill("#search", words)
        assert shown(page) == found


def test_a_click_sorts_numbers_by_value_and_what_has_none_last(visit):
    page = visit()
    for title, orders in (("Steps", (["a", "b", "a "], ["b", "a", "a "])), ("Accuracy", (["b", "a", "a "],))):
        for order in orders:
            page.get_by_role("button", name=title).click()
            assert shown(page) == order


def test_chosen_runs_are_compared(visit):
    page = visit()
    assert not page.locator("#comparison").is_visible()
    for name in ("a", "b"):
        page.get_by_label(f"compare {name}", exact=True).check()
    assert page.locator("#command").inner_text() == "lmrep report a b"
    assert page.locator("#differences").inner_text().split() == ["field", "a", "b", "seed", "0", "1"]


def test_it_fits_a_phone(visit):
    assert visit(380).evaluate("document.documentElement.scrollWidth") <= 380
