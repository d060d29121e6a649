"""The report's section of minimal pairs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lmrep.analysis.report import minimal_pairs, page, run_data
from lmrep.experiment import config as experiments
from lmrep.inference import pairs
from lmrep.inference.scores import Scores
from tests import small


def result(step, score="pll", disagree=True, path="data/blimp"):
    """A line of eval.jsonl: paradigm `<a>` of x is right in 3 of 4 pairs, `b` of y in all 2."""
    some = [pairs.Pair("", "", name, phenomenon, "") for name, phenomenon in [("<a>", "x")] * 4 + [("b", "y")] * 2]
    sums, counts = -np.array([1, 1, 1, 3, 1, 1] + [2] * 6, float), np.ones(12)
    counts[0] = 0.25 if disagree else 1
    found = pairs.figures(some, Scores(sums, counts), np.arange(6), np.arange(6, 12), np.zeros(6, bool))
    nested = {name: found.pop(name) for name in ("phenomena", "paradigms")}
    return {"step": step, "pairs": path, "score": score, "summary": f"the {score}", "metrics": found} | nested


def run(label, *evaluations):
    experiment = experiments.parse(small.config(Path("texts")))
    return run_data.RunData(Path(), label, experiment, experiments.resolve_stages(experiment), (), (), (), (), 0, None,
                            None, (), evaluations=evaluations)


def test_the_newest_results_of_each_score_are_shown():
    [table] = minimal_pairs.tables([run("one", result(4, disagree=False), result(8), result(8, "pll_word_l2r", False))])
    assert table["title"] == "blimp, 6 pairs"
    assert table["head"] == ["", "pll, step 8", "pll, step 8, mean per token", "pll_word_l2r, step 8"]
    assert [row[0] for row in table["means"]] == ["mean over 2 paradigms", "x", "y"]
    assert [cell.partition(" (")[0] for cell in table["means"][1][1:]] == ["75.0%", "50.0%", "75.0%"]
    assert [cell.partition(" (")[0] for cell in table["means"][0][1:]] == ["87.5%", "75.0%", "87.5%"]
    assert [row[0] for row in table["paradigms"]] == ["<a>", "b"] and "the pll_word_l2r" in table["notes"][1]


def test_runs_share_a_table_of_the_same_pairs():
    runs = [run("one", result(4, disagree=False)), run("two", result(9, disagree=False))]
    [table] = minimal_pairs.tables(runs)
    assert table["head"] == ["", "one, pll, step 4", "two, pll, step 9"]
    other = dataclasses.replace(runs[1], evaluations=[result(9, path="elsewhere/zorro")])
    assert [each["title"] for each in minimal_pairs.tables([runs[0], other])] == ["blimp, 6 pairs", "zorro, 6 pairs"]


@pytest.mark.parametrize("damage", [
    {"metrics": None}, {"score": 3}, {"pairs": None}, {"examples": "all"}, {"paradigms": {"b": {"accuracy": "nan"}}},
    {"phenomena": []}, {"metrics": {"loss": 1.0}},
])
def test_damaged_results_are_left_out(damage):
    assert minimal_pairs.tables([run("one", result(4) | damage)]) == []
    assert len(minimal_pairs.tables([run("one", result(4) | damage, {"step": 4, "split": "test"}, result(4))])) == 1


def test_the_page_has_the_section_only_with_results(tmp_path):
    shown = page.render([run("one", json.loads(json.dumps(result(4))))])
    assert 'id="pairs"' in shown and 'href="#pairs"' in shown and "&lt;a&gt;" in shown and "<a>" not in shown
    assert "the pll" in shown and "mean over 2 paradigms" in shown
    assert 'id="pairs"' not in page.render([run("one")])
