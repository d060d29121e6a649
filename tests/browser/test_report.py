"""The report in headless Chromium: it loads without errors or network requests, its controls work, and it fits a phone
and paper.

    apt-get install chromium && pip install -e '.[test,browser]' && pytest -n 0 tests/browser
"""

import json
import shutil
from xml.etree import ElementTree

import pytest
from playwright import sync_api

import lmrep
from lmrep.analysis import report
from lmrep.storage.workdir import write_config
from tests import small

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 380, "height": 800}
HOSTILE = "The [MASK] </script><img src=//x> & \u2028"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The report of a masked run, of its copy under another name, and of a causal run."""
    home = tmp_path_factory.mktemp("browser")
    config = small.config(small.corpus(home / "texts"))
    config.samples = ("The old [MASK] sees the red cat.", HOSTILE)
    lmrep.train(config, home / "one", data_dir=home / "data", command=["lmrep", "train", "--workdir=runs/one"])
    with open(home / "one/eval.jsonl", "w", encoding="utf8") as file:
        file.writelines(json.dumps({"step": step, "split": "test", "metrics": {"mlm_loss": x}}) + "\n"
                        for step, x in ((0, 7.0), (4, 6.0), (8, 5.0), (12, 4.5)))
    shutil.copytree(home / "one", home / "a name that is far too long for the width of a phone_and_cannot_be_broken",
                    ignore=shutil.ignore_patterns(".lock"))
    config = small.config(home / "texts", "causal")
    config.samples = ("The old cat",)
    lmrep.train(config, home / "two", data_dir=home / "data", command=["lmrep", "train", "--workdir=runs/two"])
    workdirs = sorted(path.parent for path in home.glob("*/config.json"))
    return report.write(workdirs, home / "report.html", data_dir=home / "data")


@pytest.fixture
def visit(open_page, path):
    """visit(viewport, **options) -> the loaded page."""
    return lambda viewport=WIDE, **options: open_page(path, viewport, **options)


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def charts(page):
    return [plot.inner_html() for plot in page.locator(".plot").all()]


def test_page_shows_curves_predictions_and_attention(visit):
    page = visit()
    for figures in (":not([data-axis])", "[data-axis=flop]"):  # over steps, and over compute
        assert page.locator(f"figure{figures} .plot path.validation").count() == 6  # three runs, loss and accuracy
    for metric, runs in (("mlm_accuracy", 2), ("mlm_loss", 2), ("lm_accuracy", 1), ("lm_loss", 1)):
        assert page.locator(f"figure[data-metric={metric}]:not([data-axis]) path.validation").count() == runs
        assert page.locator(f"figure[data-metric={metric}]:not([data-axis]) path.base").count() == runs
    assert page.locator(".plot svg").count() == page.locator("figure[data-metric]").count() >= 5
    assert page.locator("#map svg rect.cell").count() > 20 and page.locator("#tokens button").count() > 8
    assert page.locator(".bars li").count() >= 40 and page.locator("main img").count() == 0
    assert "</script><img src=//x>" in page.locator("#predictions ~ .prompt").nth(1).inner_text()
    assert page.locator("#predictions ~ .prompt", has_text="The old cat").count() >= 1


def test_axes_change(visit):
    page = visit()
    seen = [charts(page)]
    for control in ("input[value=tokens]", "input[value=flop]", "#logx", "#logy"):
        page.locator(control).check()
        assert charts(page) != seen[-1]
        seen.append(charts(page))
    page.locator("#logx").uncheck()
    page.locator("#logy").uncheck()
    page.locator("input[value=step]").check()
    assert charts(page) == seen[0]
    assert "floating-point operations" in seen[2][0] and "steps" in seen[0][0]


def test_pointer_shows_values_of_the_curves(visit):
    page = visit()
    figure = page.locator("figure[data-metric=mlm_loss]:not([data-axis])")
    figure.locator("svg").hover(position={"x": 200, "y": 60})
    text = figure.locator("output").inner_text()
    assert text.startswith("at ") and "validation" in text


def test_layer_head_token_and_text_are_chosen(visit):
    page = visit()
    looks, map_ = page.locator("#looks"), page.locator("#map")
    seen = [(looks.inner_text(), map_.inner_html())]

    def changed():
        seen.append((looks.inner_text(), map_.inner_html()))
        return seen[-1] not in seen[:-1]

    assert "[MASK]" in seen[0][0] and "layer 2" in seen[0][0]
    page.locator("#layer").select_option("0")
    assert changed() and "layer 1" in seen[-1][0]
    page.locator("#head").select_option("2")
    assert changed() and "head 3" in seen[-1][0]
    page.locator("#tokens button").nth(2).click()
    assert changed() and page.locator("#tokens button[aria-pressed=true]").count() == 1
    box = page.locator("#heads").bounding_box()
    page.locator("#heads").click(position={"x": box["width"] * 0.99, "y": box["height"] * 0.99})
    assert changed() and "layer 2, head 4" in seen[-1][0]
    page.locator("#text").select_option("1")
    assert changed() and page.locator("#tokens button").count() != 12


def test_theme_follows_the_system_or_the_selection(visit):
    light, dark = background(visit(color_scheme="light")), background(visit(color_scheme="dark"))
    assert light != dark
    page = visit(color_scheme="light")
    page.locator("#theme").select_option("dark")
    assert background(page) == dark
    page.locator("#theme").select_option("auto")
    assert background(page) == light
    page.emulate_media(color_scheme="dark")
    sync_api.expect(page.locator("body")).to_have_css("background-color", dark)


def test_page_fits_a_phone(visit):
    page = visit(PHONE, is_mobile=True, has_touch=True)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator(".plot svg").first.bounding_box()["width"] <= PHONE["width"]
    page.locator("#layer").select_option("0")
    assert "layer 1" in page.locator("#looks").inner_text()


def test_printed_page_is_light_and_has_no_controls(visit):
    page = visit(color_scheme="dark")
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator("header").is_visible() and not page.locator("#axes").is_visible()
    assert page.locator(".plot svg").first.is_visible() and page.locator("#map svg").is_visible()
    page.emulate_media(media="screen")
    assert len(page.pdf(format="A4")) > 20_000


def test_checkpoints_are_drawn_on_either_axis(visit):
    page = visit()
    figure = page.locator("figure[data-series]")
    assert figure.locator("path.validation").count() == 2 and figure.locator("circle").count() == 6  # without step 0
    page.locator("#logsteps").uncheck()
    assert figure.locator("circle").count() == 8
    figure.locator("svg").hover()
    assert figure.locator("output").inner_text().startswith("at ") and "one " in figure.locator("output").inner_text()


def test_seeds_are_a_band_and_a_figure_is_saved_as_svg(open_page, path, tmp_path):
    """Two runs that differ in their seed: a mean within a band. The saved file needs nothing of the page."""
    for seed in (0, 1):
        workdir = shutil.copytree(path.parent / "one", tmp_path / f"seed{seed}", ignore=shutil.ignore_patterns(".lock"))
        record = json.loads((workdir / "config.json").read_text())
        record["config"]["seed"] = seed
        write_config(workdir, record)
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        (workdir / "metrics.jsonl").write_text("".join(
            json.dumps(line | {"mlm_loss": line["mlm_loss"] + seed} | (
                {"tokens": line["tokens"] + seed} if "tokens" in line else {})) + "\n" for line in lines))
    page = open_page(report.write([tmp_path / "seed0", tmp_path / "seed1"], tmp_path / "report.html",
                                  data_dir=path.parent / "data"), WIDE)
    figure = page.locator("figure[data-metric=mlm_loss]:not([data-axis])")
    assert figure.locator("path.band").count() == figure.locator("path.validation").count() == 1
    figure.locator("svg").hover(position={"x": 200, "y": 60})
    assert "mean of 2 seeds" in figure.locator("output").inner_text()
    with page.expect_download() as download:
        figure.get_by_role("button", name="SVG").click()
    download.value.save_as(tmp_path / "figure.svg")
    saved = ElementTree.parse(tmp_path / "figure.svg").getroot()
    assert saved.tag.endswith("svg") and download.value.suggested_filename.endswith(".svg")
    styles = {node.get("class"): node.get("style", "") for node in saved.iter()}
    page.locator("input[value=tokens]").check()  # of which the seeds have other numbers: both are shown
    assert figure.locator("path.validation").count() == 2
    assert "rgb(" in styles["validation"] and "fill-opacity: 0.18" in styles["band"] and "cursor" not in styles


def test_one_point_is_a_number(open_page, path, tmp_path):
    workdir = shutil.copytree(path.parent / "one", tmp_path / "one", ignore=shutil.ignore_patterns(".lock"))
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text(next(line for line in lines if '"validation"' in line))
    page = open_page(report.write([workdir], data_dir=path.parent / "data"), WIDE)
    plot = page.locator("figure[data-metric=mlm_loss]:not([data-axis]) .plot")
    assert " at 0 steps" in plot.inner_text() and plot.locator("svg").count() == 0
