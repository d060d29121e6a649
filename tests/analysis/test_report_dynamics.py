"""The report's charts of checkpoints over steps."""

import json
import math
import re
from html import unescape
from pathlib import Path

import pytest

from lmrep.analysis.report import dynamics, page, run_data
from lmrep.experiment import config as experiments
from tests import small

TEST = {"split": "test", "examples": 64}


def line(step, subject=TEST, **metrics):
    """A line of eval.jsonl."""
    return {"step": step, **subject, "metrics": metrics}


def probe(step, *accuracies, name="tagging", train=40):
    """A record of probes.json, with the accuracy of each layer."""
    return {"name": name, "task": "tagging", "source": f"run, step {step}", "best": "token_accuracy",
            "examples": {"train": train, "validation": 60}, "step": step, "layers": [
                {"metrics": {"token_accuracy": value}, "intervals": {}} for value in accuracies]}


def run(*evaluations, label="one", probes=()):
    experiment = experiments.parse(small.config(Path("texts")))
    return run_data.RunData(Path(), label, experiment, experiments.resolve_stages(experiment), (), (), (), (), 0, None,
                            None, (), evaluations=evaluations, probes=probes)


def drawn(*runs):
    """{title of a chart: {label of a line: its points}}."""
    return {chart.title: {line.label: line.points for line in chart.lines} for chart in dynamics.charts(runs)}


def test_metrics_of_a_subject_are_drawn_over_steps():
    """In the order of steps, the newest result of a step; a loss that is its only term once; no counts or baselines."""
    numbers = {0: 7.0, 8: 5.0, 2: 6.0}
    lines = [line(2, loss=9.0, mlm_loss=9.0), *(
        line(step, loss=x, mlm_loss=x, mlm_accuracy=x / 10, most_frequent_accuracy=0.05, targets=100)
        for step, x in numbers.items())]
    assert drawn(run(*lines)) == {
        "Masked-LM loss, nats; test, 64 examples": {"": [(0, 7.0), (2, 6.0), (8, 5.0)]},
        "Masked-LM accuracy; test, 64 examples": {"": [(0, 0.7), (2, 0.6), (8, 0.5)]}}
    assert [chart.percent for chart in dynamics.charts([run(*lines)])] == [False, True]


def test_only_equal_subjects_share_a_chart():
    """One checkpoint, other examples and other settings give no line; damaged results and values are left out."""
    other = {"split": "validation", "examples": 64}
    lines = [line(1, loss=1.0), line(2, other, loss=2.0), line(3, TEST | {"examples": 6}, loss=3.0),
             line(4, TEST | {"length": 32}, loss=4.0), {"step": 5, **TEST, "metrics": None}, line(6, loss="nan")]
    assert drawn(run(*lines)) == {}
    assert drawn(run(*lines, line(7, other, loss=7.0), line(9, other, loss=math.inf))) == {
        "Loss; validation, 64 examples": {"": [(2, 2.0), (7, 7.0)]}}


def test_minimal_pairs_are_drawn_by_accuracy():
    pairs = {"pairs": "data/blimp", "score": "pll", "examples": 6}
    lines = [line(step, pairs, accuracy=x, low=x - 0.1, high=x + 0.1, ties=0) for step, x in ((1, 0.5), (2, 0.75))]
    [chart] = dynamics.charts([run(*lines)])
    assert (chart.title, chart.percent) == ("accuracy; data/blimp, pll, 6 examples", True)
    assert chart.lines[0].points == [(1, 0.5), (2, 0.75)]


def test_runs_share_a_chart_and_a_source_of_a_mixture_is_named():
    lines = [[line(step, **{"loss": x + step, "mrpc/mlm_accuracy": x}) for step in (1, 2)] for x in (0.25, 0.5)]
    runs = [run(*lines[0]), run(*lines[1], label="two")]
    assert drawn(*runs) == {
        "Masked-LM accuracy; mrpc, test, 64 examples": {"one": [(1, 0.25), (2, 0.25)], "two": [(1, 0.5), (2, 0.5)]},
        "Loss; test, 64 examples": {"one": [(1, 1.25), (2, 2.25)], "two": [(1, 1.5), (2, 2.5)]}}
    assert [line.color for line in dynamics.charts(runs)[0].lines] == ["var(--r0)", "var(--r1)"]


def test_layers_of_a_probe_are_lines():
    records = [probe(8, 0.5, 0.75), probe(0, 0.5, 0.25), probe(8, 0.9, 0.9, train=10), probe(4, 0.1, name="other"),
               probe(8, 0.8, 0.8) | {"pooling": "mean"}]
    assert drawn(run(probes=records)) == {"Token accuracy of linear classifiers; tagging, 60 examples": {
        "embeddings": [(0, 0.5), (8, 0.5)], "layer 1": [(0, 0.25), (8, 0.75)]}}
    shown = dynamics.tables(records)
    assert [(record["step"], [other["step"] for other in earlier]) for record, earlier in shown] == [
        (8, [0]), (8, []), (4, []), (8, [])]


@pytest.mark.parametrize(("steps", "logarithmic"), [((0, 5), False), ((0, 1, 2), True), ((3, 4), True)])
def test_the_axis_is_logarithmic_where_two_points_are_on_it(steps, logarithmic):
    charts = dynamics.charts([run(*(line(step, loss=float(step)) for step in steps))])
    assert dynamics.logarithmic(charts) is logarithmic


def test_the_page_has_the_section_only_with_two_checkpoints():
    lines, probes = [line(step, loss=1.5 + step) for step in (1, 2)], [probe(1, 0.25, 0.5), probe(2, 0.5, 0.75)]
    shown = page.render([run(*lines, label="<b>", probes=probes), run(*lines, label="two")])
    series = [json.loads(unescape(text)) for text in re.findall("data-series='(.*?)'", shown)]
    assert [[[label, points] for label, _, points in lines] for lines in series] == [
        [["<b>", [[1, 2.5], [2, 3.5]]], ["two", [[1, 2.5], [2, 3.5]]]],
        [["embeddings", [[1, 0.25], [2, 0.5]]], ["layer 1", [[1, 0.5], [2, 0.75]]]]]
    assert 'href="#dynamics"' in shown and shown.count("Earlier checkpoints") == 1
    assert 'id="dynamics"' not in page.render([run(lines[0], probes=probes[:1])])
