"""Multi-label classification: loss in closed form, metrics of scikit-learn, labels in files, and a run."""

import json
import random

import numpy as np
import pytest
from sklearn import metrics as sklearn

import lmrep
from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.metrics import multilabel as measures
from lmrep.metrics.tasks import TASK_METRICS
from tests.tasks import tiny

LABELS = ("cat", "dog", "tree")


def examples(count, seed=0):
    """Texts whose labels are those of their words that are in `LABELS`; every other one is a pair."""
    draw = random.Random(seed)
    texts = [tiny.sentence(draw, draw.randint(1, 6)) for _ in range(count)]
    return [{"text": text, "labels": [label for label in LABELS if label in text.split()]}
            | ({"text2": "stone"} if i % 2 else {}) for i, text in enumerate(texts)]


def test_metrics_are_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    true, chosen = (draw.random((2, 50, 4)) < [[[0.5]], [[0.4]]])
    sets = [[[f"l{i}" for i in np.flatnonzero(row)] for row in rows] for rows in (true, chosen)]
    expected = {"micro_f1": sklearn.f1_score(true, chosen, average="micro"),
                "macro_label_f1": sklearn.f1_score(true, chosen, average="macro"),
                "subset_accuracy": sklearn.accuracy_score(true, chosen)}
    for name, value in expected.items():
        metric = TASK_METRICS[name]
        np.testing.assert_allclose(metric.function(*sets), value)
        np.testing.assert_allclose(metric.figure(metric.sums(*sets).sum(0)), value)
    subsets = [[i for i in range(4) if number >> i & 1] for number in range(1, 16)]
    constants = [np.isin(np.arange(4), subset)[None].repeat(50, 0) for subset in subsets]
    np.testing.assert_allclose(measures.constant_micro_f1(sets[0]), max(
        sklearn.f1_score(true, constant, average="micro") for constant in constants))
    np.testing.assert_allclose(measures.constant_subset_accuracy(sets[0]), max(
        sklearn.accuracy_score(true, constant) for constant in [*constants, np.zeros_like(true)]))
    assert TASK_METRICS["micro_f1"].function([[]], [[]]) == measures.constant_micro_f1([[]]) == 0
    with pytest.raises(UserError, match="there are no examples"):
        TASK_METRICS["macro_label_f1"].function([], [])


@pytest.mark.parametrize(("name", "content", "columns", "options"), [
    ("a.jsonl", '{"text": "x", "labels": ["b", "a"]}\n{"text": "y", "labels": []}\n', {}, {}),
    ("a.jsonl", '{"text": "x", "a": 1, "b": true, "c": 0}\n{"text": "y", "a": 0, "b": 0, "c": 0}\n',
     {"labels": "b,a,c"}, {"label_map": {"true": "1"}}),
    ("a.csv", "text,labels\nx,b|a\ny,\n", {}, {"label_separator": "|"}),
    ("a.csv", "a,text,b,c\n1,x,1.0,0\n0,y,0,0\n", {"labels": "b,a,c"}, {}),
    ("a.tsv", "text\ttopics\nx\tnews/b, news/a\ny\t\n", {"labels": "topics"},
     {"label_map": {"news/a": "a", "news/b": "b"}})])
def test_labels_are_lists_or_texts_with_separators_or_columns(tmp_path, name, content, columns, options):
    (tmp_path / name).write_text(content)
    config = records.Config(train=str(tmp_path / name), columns=columns, **options)
    if "true" in content:
        with pytest.raises(UserError, match=r"line 1: 'b,a,c' is .*expected 0 or 1"):
            records.read(config, "train", ("text", "labels"))
        return
    found = records.read(config, "train", ("text", "labels"))
    assert [record.fields["labels"] for record in found] == [["b", "a"], []]


@pytest.mark.slow
def test_a_run_learns_predicts_and_writes_its_labels(tmp_path):
    train = tiny.write(tmp_path / "train.jsonl", examples(200))
    dev = tiny.write(tmp_path / "dev.jsonl", examples(40, seed=1))
    lmrep.train(tiny.config("multilabel", train, dev, epochs=8.0), tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    metrics = results["evaluations"][0]["metrics"]
    assert metrics["micro_f1"] > metrics["constant_micro_f1"]
    run = lmrep.load(tmp_path / "run")
    [prediction] = run.predict(["cat cat"])
    assert prediction["labels"] == [label for label, p in prediction["probabilities"].items() if p > 0.5]
    lines = (tmp_path / "run" / "predictions" / "validation.tsv").read_text().splitlines()
    assert len(lines) == 40 and all(set(line.split("\t")[1].split(",")) <= {*LABELS, ""} for line in lines)
