"""The blocks that pages are filled with when they are built name what exists, and the pages of the field what a config
file accepts."""

import html
import re

import pytest
from jax.sharding import NamedSharding

from lmrep.config import loading
from lmrep.core.sharding import abstract_mesh, make_mesh, partition_spec
from lmrep.experiment import config as experiments
from lmrep.experiment.resolve import apply_overrides
from lmrep.interop import student
from tests.docs.documented import ROOT, blocks

FIELD = sorted(set((ROOT / "docs/field").glob("*.md")) - {ROOT / "docs/field/index.md"})
USES = dict.fromkeys(use for page in FIELD for row in re.findall(r"^\| .*$", page.read_text(), re.MULTILINE)
                     for use in re.findall(r"`((?:\w+/)?\w+\.py[^`]*)`", row))
READS_A_RUN = r"\b(init|teacher|features)="  # whose network, tokenizer or labels the config then gets


@pytest.fixture(scope="module")
def make():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    return loading.load_module(ROOT / "docs/blocks.py")


@pytest.mark.parametrize("block", blocks("source", "results", "picture", "meshes", "packages", "math"),
                         ids=lambda block: block.name)
def test_a_block_is_made(block, make):
    made = make.BLOCKS[block.language](block.text, "../")
    assert {"source": "```python", "results": "../results/claims.md#", "picture": "<svg", "meshes": "<svg",
            "packages": "<svg", "math": "<math"}[block.language] in made
    assert block.language != "math" or "\\" not in html.unescape(made), f"{block.name}: a command of LaTeX is unknown"
    if block.language == "source":
        assert 2 <= len(made.splitlines()) - 2 <= 25, f"{block.name}: shows {len(made.splitlines()) - 2} lines"


def test_formulas_in_lines_of_text_are_made(make):
    formulas = {formula for page in FIELD for formula in re.findall(r"\$`(.*?)`\$", page.read_text())}
    assert len(formulas) > 60
    for formula in formulas:
        made = make.on_page_content(f"of $<code>{html.escape(formula)}</code>$.", None, None, None)
        assert re.fullmatch(r"of <math.*</math>\.", made) and "\\" not in html.unescape(made), formula


@pytest.mark.parametrize(("text", "message"), [
    ("lmrep/objectives/nothing.py:prepare", "no file lmrep/objectives/nothing.py"),
    ("lmrep/objectives/causal.py:nothing", "causal.py has no nothing"),
    ("lmrep/objectives/causal.py:prepare.nothing", "has no prepare.nothing"),
    ("lmrep/objectives/causal.py:prepare\nfrom: nothing", "no line with 'nothing'"),
    ("lmrep/objectives/causal.py:prepare\nfrom: return batch\nto: tokens, segment_ids", "no line with 'tokens, segm"),
    ("lmrep/objectives/causal.py", "expected FILE.py:NAME")])
def test_code_that_is_gone_ends_the_build(text, message, make):
    with pytest.raises(ValueError, match=re.escape(message)):
        make.source(text, "")


@pytest.mark.parametrize(("language", "text"), [("results", "roberta_table9"), ("picture", "nothing")])
def test_other_names_that_do_not_exist_end_the_build(language, text, make):
    with pytest.raises(ValueError, match=text):
        make.BLOCKS[language](text, "")


def test_an_excerpt_is_the_code_between_two_lines_without_docstring(make):
    text = (ROOT / "lmrep/objectives/causal.py").read_text().splitlines()
    place, code = make.excerpt(
        "lmrep/objectives/causal.py:prepare\nfrom: tokens, segment_ids\nto: targets, next_segment")
    first, last = map(int, re.search(r"lines (\d+)-(\d+)$", place).groups())
    assert [line.strip() for line in text[first - 1 : last]] == code.splitlines() and last == first + 1
    whole = make.excerpt("lmrep/models/transformer_config.py:Config.windows").code
    assert whole.startswith("@property\ndef windows") and '"""' not in whole and "global_every" in whole


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (4, 1, 2), (2, 2, 2), (2, 1, 2, 2)])
@pytest.mark.parametrize("axes", [("batch", "length"), ("vocab", "embed"), ("embed", "mlp")])
def test_the_picture_of_a_mesh_has_the_shards_of_jax(axes, sizes, make):
    mesh, shape, held = make_mesh(*sizes), (8, 16), {}
    shards = NamedSharding(mesh, partition_spec(axes, shape, mesh)).devices_indices_map(shape)
    for number, device in enumerate(mesh.devices.flat):
        held.setdefault(tuple(part.start or 0 for part in shards[device]), []).append(number)
    parts = make._parts(abstract_mesh(sizes), axes, shape)
    assert [parts[place] for place in sorted(parts)] == [held[start] for start in sorted(held)]


def test_the_table_of_systems_has_the_pages_in_the_order_of_the_menu():
    menu = re.findall(r"field/(\w+\.md)", (ROOT / "mkdocs.yml").read_text())
    index = (ROOT / "docs/field/index.md").read_text()
    assert ["index.md", *re.findall(r"^\| [\d, -]+ \| \[.*?\]\((\w+\.md)\)", index, re.MULTILINE)] == menu
    assert {*menu} == {page.name for page in FIELD} | {"index.md"}


def test_a_page_of_the_field_has_all_parts():
    for page in FIELD:
        text = page.read_text()
        assert all(f"```{kind}\n" in text for kind in ("math", "source")), page
        assert re.search(r"^## \w+ [^\n]*, and ablations\n.*^\| to get \| use \|\n.*^## In miniature\n", text,
                         re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("use", USES)
def test_an_ablation_is_what_a_config_file_accepts(use, monkeypatch):
    monkeypatch.setattr(student, "follow", following)
    page, *fields = use.split()
    file, _, argument = page.partition(":")
    config = loading.load(ROOT / "experiments" / file, argument)
    config = apply_overrides(config, [tuple(field.split("=", 1)) for field in fields])
    if not re.search(READS_A_RUN, use):
        experiments.parse(config)


def following(config, *choices):
    """In place of what a student gets of its teacher, which is no run here."""
    config.init = str(choices)
    return config


@pytest.mark.slow
def test_pictures_are_those_of_the_batches(tmp_path, monkeypatch):
    script = loading.load_module(ROOT / "docs/draw_masks.py")
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.main()
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in (ROOT / "docs/masks").iterdir()}
    for file in tmp_path.iterdir():
        assert file.read_text() == (ROOT / "docs/masks" / file.name).read_text(), f"{file.name}: run docs/draw_masks.py"
        assert file.stat().st_size < 10_000
