"""The attention of a source and a target in headless Chromium."""

import pytest

import lmrep
from lmrep.analysis import report
from tests.tasks import tiny

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 380, "height": 800}
PAIRS = [{"text": "cat dog bird", "target": "bird dog cat fish"}, {"text": "horse mouse", "target": "mouse"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    home = tmp_path_factory.mktemp("pairs")
    train = tiny.write(home / "train.jsonl", PAIRS * 4)
    config = tiny.config("text_to_text", train, train, objective__max_target=8, epochs=1.0, model__layers=2,
                         model__head_width=0, model__max_length=0, objective__metrics=("chrf",))
    lmrep.train(config, home / "run", data_dir=home / "data")
    return report.write([home / "run"], data_dir=home / "data")


def test_attention_is_chosen_and_its_axes_are_named(open_page, path):
    page = open_page(path, WIDE)
    looks, map_, tokens, keys = (page.locator(name) for name in ("#looks", "#map", "#tokens", "#keys"))
    assert tokens.locator("button").all_inner_texts() == ["bird", "dog", "cat", "fish", "[SEP]"]
    assert keys.locator("span").all_inner_texts() == ["cat", "dog", "bird", "[SEP]"]
    assert tokens.locator("small").inner_text() == "target" and keys.locator("small").inner_text() == "source"
    assert looks.inner_text().startswith("The step that predicts “bird” attends, in layer 2, averaged over heads, to: ")
    assert map_.locator("text.axis").all_text_contents() == ["keys: source", "queries: target"]
    assert map_.locator("rect.cell").count() == 20
    assert map_.locator("rect.frame").evaluate("e => e.getAttribute('width') / e.getAttribute('height')") == 4 / 5
    assert "Columns: keys, the tokens of the source" in page.locator("#axes-of-map").inner_text()
    tokens.locator("button").nth(2).click()
    assert "predicts “cat”" in looks.inner_text() and tokens.locator("[aria-pressed=true]").inner_text() == "cat"
    size = page.locator("#heads").evaluate("e => [e.width, e.height]")
    assert size == [2 * (4 + 1) - 1, 2 * (5 + 1) - 1]

    page.locator("#kind").select_option(label="self-attention of the encoder")
    assert tokens.locator("button").all_inner_texts() == ["cat", "dog", "bird", "[SEP]"]
    assert not keys.is_visible() and looks.inner_text().startswith("“cat” attends, in layer 2")
    assert map_.locator("text.axis").all_text_contents() == ["keys: source", "queries: source"]

    page.locator("#kind").select_option(label="self-attention of the decoder")
    assert tokens.locator("button").all_inner_texts() == ["[PAD]", "bird", "dog", "cat", "fish"]
    assert map_.locator("rect.cell").count() == 15  # causal
    page.locator("#text").select_option("1")
    assert tokens.locator("button").all_inner_texts() == ["[PAD]", "mouse"]  # the choice of the map stays
    page.locator("#layer").select_option("0")
    page.locator("#head").select_option("1")
    assert "in layer 1, head 2" in looks.inner_text()


def test_the_map_fits_a_phone(open_page, path):
    page = open_page(path, PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator("#map svg").bounding_box()["width"] <= PHONE["width"]
