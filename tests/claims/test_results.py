"""The results of a claim: the line of its state, its table in Markdown and LaTeX, and the page of the documentation."""

import re

import pytest

from lmrep.claims import claim as claims
from lmrep.claims import results
from lmrep.config import json_files
from lmrep.config.loading import load_module
from lmrep.core.errors import UserError
from lmrep.core.files import write_json
from tests import small
from tests.claims.sample import RESULTS
from tests.docs.documented import ROOT


def test_results_are_read_back_from_their_file(tmp_path):
    (tmp_path / "results").mkdir()
    write_json(tmp_path / "results/a.json", RESULTS)
    assert results.of_package(tmp_path / "a.py") == RESULTS and results.of_package(tmp_path / "b.py") is None
    write_json(tmp_path / "results/a.json", RESULTS | {"rows": {"base": {}}})
    with pytest.raises(UserError, match=r"a\.json is damaged: rows\.base\.title is missing"):
        results.of_package(tmp_path / "a.py")


def test_a_state_counts_verdicts():
    assert results.state(RESULTS) == "1 reproduced, 2 not resolved at this scale (3 seeds, 2026-11-28)"
    assert results.state(RESULTS | {"scale": "single"}).endswith("(3 seeds, 2026-11-28, scale single)")
    assert results.state(None) == "not run here"


def test_results_of_the_package_are_those_of_their_claims():
    """Each file of results has the rows of its claim."""
    folder = ROOT / "experiments/claims" / results.FOLDER
    for file in folder.glob("*.json"):
        content, claim = json_files.read(results.Results, file), claims.load(folder.parent / f"{file.stem}.py")
        assert content["claim"] == file.stem and content["rows"].keys() == claim.rows.keys(), file
        for name, row in claim.rows.items():
            stated = {key: value for key, value in row._asdict().items() if key != "run"}
            assert stated.items() <= content["rows"][name].items(), (file, name)


def test_the_list_has_costs_and_states(monkeypatch):
    monkeypatch.setattr(results, "of_package", lambda file: RESULTS if file.stem == "roberta_table1" else None)
    lines = small.command("reproduce", "--list").out.splitlines()
    i = lines.index("roberta_table1: Liu et al., 2019, table 1")
    assert lines[i + 2].startswith("  1 reproduced, 2 not resolved at this scale (3 seeds, 2026-11-28)")
    assert any(line.startswith("  not run here") for line in lines)


def test_the_table_in_markdown():
    lines = results.markdown(RESULTS).splitlines()
    assert {line.count("|") for line in lines[2:8]} == {8}
    assert lines[5].endswith("| 1.13 ± 0.15 | -0.97 (-1.20 to -0.70) | below | reproduced | 80.5 | +0.5 |")
    assert lines[6] == ("| a deep one | 2.30 | +0.30 | above -0.1 | not resolved at this scale (about 7 seeds would "
                        "resolve it) |  |  |")
    assert lines[2].startswith("| setting | loss, nats | difference from the base & co, 95 % interval | claimed |")
    rows = RESULTS["rows"] | {"lost": RESULTS["rows"]["lost"] | {"against": "deep"}}
    lines = results.markdown(RESULTS | {"rows": rows}).splitlines()
    assert "| difference, 95 % interval |" in lines[2] and "| +0.30 from the base & co |" in lines[6]
    assert "The 3 intervals hold together at 95 % (Bonferroni): each has 98.33 %." in lines


def without_figures():
    return RESULTS | {"rows": {name: row | {"published": None} for name, row in RESULTS["rows"].items()}}


def test_a_paper_without_figures_has_no_columns_for_them():
    head, *rows = results.cells(without_figures())
    assert head[-1] == "verdict" and {len(row) for row in rows} == {len(head)}


@pytest.mark.parametrize("found", [RESULTS, without_figures()], ids=["figures", "no figures"])
def test_the_table_in_latex(found):
    """As many cells in each row as columns, balanced braces, and no character that LaTeX reads as a command."""
    text = results.latex(found)
    assert text.count("{") == text.count("}") and not re.search(r"(?<!\\)[%#]", text)
    columns = re.findall(r"p\{([\d.]+)\\linewidth\}", text)
    assert 0.9 < sum(map(float, columns)) < 0.95  # and twelve times 2 pt between them
    rows = re.search(r"\\toprule\n(.*)\\bottomrule", text, re.DOTALL)[1].replace("\\midrule\n", "").splitlines()
    assert len(rows) == 1 + len(RESULTS["rows"])
    for row in rows:
        assert row.endswith(r" \\") and len(re.split(r"(?<!\\)&", row)) == len(columns)
    notes = re.search(r"\{minipage\}\{\\linewidth\}\n(.*)\\end\{minipage\}", text, re.DOTALL)[1]
    for body in (*rows, notes, re.search(r"\\caption\{(.*)\}\n", text)[1]):
        assert not re.search(r"(?<!\\)[_^~]", body) and body.count("$") % 2 == body.count(r"\$") % 2
        assert body.isascii()
    assert re.findall(r"\\(?:begin|end)\{(\w+)\}", text) == [
        "table", "tabular", "tabular", "minipage", "minipage", "table"]


@pytest.mark.parametrize(("text", "escaped"), [
    ("50 % & a_b #1 {x} ~ ^ \\", r"50 \% \& a\_b \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}"),
    ("-1.00 (-1.20 to +0.70)", "$-$1.00 ($-$1.20 to $+$0.70)"), ("seeds 0-2, 1e-4", "seeds 0-2, 1e-4"),
    ("1.0 ± 0.1", r"1.0 $\pm$ 0.1")])
def test_texts_are_escaped_for_latex(text, escaped):
    assert results.tex(text) == escaped


def test_the_documentation_shows_the_results(monkeypatch):
    """In a table of all claims, and a section for each that was run here."""
    pytest.importorskip("mkdocs")
    hooks = load_module(ROOT / "docs/hooks.py")
    monkeypatch.setattr(results, "of_package", lambda file: RESULTS if file.stem == "roberta_table1" else None)
    text = "\n".join(hooks.claims())
    assert "| [`roberta_table1`](#roberta_table1) | Liu et al., 2019, table 1 |" in text
    assert text.count("| not run here |") == len(claims.installed()) - 1
    assert "## Liu et al., 2019, table 1 { #roberta_table1 }" in text and f"Made by: `{RESULTS['command']}`" in text
    assert "<svg" in text and "\n\n" not in text[text.index("<svg"):text.index("</svg>")]  # which would end the HTML
    assert "| 1.13 ± 0.15 | -0.97 (-1.20 to -0.70) | below | reproduced | 80.5 | +0.5 |" in text
