"""Regression: its loss and gradient in closed form, its labels, its metrics, and a run."""

import dataclasses
import random

import numpy as np
import pytest
from scipy import stats

import lmrep
from lmrep.tasks.base import Result
from tests.tasks import tiny


def examples(count, seed=0):
    """Texts whose number is that of their cats, and pairs."""
    draw = random.Random(seed)
    records = []
    for i in range(count):
        text = tiny.sentence(draw, draw.randint(1, 5))
        record = {"text": text, "label": str(float(text.split().count("cat")))}
        records.append(record | ({"text2": tiny.sentence(draw, 3)} if i % 2 else {}))
    return records


@pytest.fixture(scope="module")
def task():
    return tiny.Tiny("regression", examples(32))


def test_metrics_are_those_of_scipy_and_the_baseline_predicts_the_mean(task):
    result = task.score()
    gold = [float(record.fields["label"]) for record in task.records]
    value = [prediction["value"] for prediction in result.predictions]
    expected = {"pearson": stats.pearsonr(gold, value).statistic, "spearman": stats.spearmanr(gold, value).statistic,
                "mean_squared_error": np.mean(np.subtract(gold, value) ** 2),
                "loss": np.mean(np.subtract(gold, value) ** 2),
                "variance": np.mean((np.array(gold) - np.mean(gold)) ** 2)}
    assert result.metrics == pytest.approx(expected)
    assert task.score(batch_size=5).metrics == pytest.approx(expected, abs=1e-5)


def test_the_number_of_a_long_text_is_the_mean_of_its_windows(task):
    records = [{"text": " ".join(["cat"] * 12), "label": "1"}, {"text": "dog", "label": "2"}]
    long = tiny.Tiny("regression", records, length=8, form={"long": "windows", "stride": 3})
    units, count = long.encode()
    assert count == 1 and units.example.tolist() == [0, 0, 0, 1]
    value = np.concatenate(long.outputs(long.examples())["value"], axis=None)
    found = [prediction["value"] for prediction in long.score().predictions]
    np.testing.assert_allclose(found, [value[:3].mean(), value[3]], rtol=1e-6)


def test_submissions_are_in_the_form_and_the_range_of_glue(task):
    config = dataclasses.replace(task.config, minimum=-0.5, maximum=0.5)
    result = Result({}, [{"value": value} for value in (-2.0, 0.12345, 9.0)])
    assert task.task.submission(config, task.records[:3], result) == {
        "predictions.tsv": "index\tprediction\n0\t-0.500\n1\t0.123\n2\t0.500\n"}
    assert "2\t9.000" in task.task.submission(task.config, task.records[:3], result)["predictions.tsv"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, outcome) of a run that learns to count cats."""
    home = tmp_path_factory.mktemp("regression")
    train = tiny.write(home / "train.jsonl", examples(128))
    dev = tiny.write(home / "dev.jsonl", examples(48, seed=1))
    return home / "run", lmrep.train(tiny.config("regression", train, dev, epochs=8.0), home / "run")


@pytest.mark.slow
def test_a_run_learns_to_count(trained):
    workdir, outcome = trained
    assert outcome.after["pearson"] > 0.8 and outcome.after["mean_squared_error"] < 0.5 * outcome.after["variance"]
    assert len((workdir / "predictions/validation.jsonl").read_text().splitlines()) == 48


@pytest.mark.slow
def test_it_predicts_numbers(trained):
    run = lmrep.load(trained[0])
    few, many, pair = run.predict(["dog bird", "cat cat cat", ("cat cat cat", "dog")])
    assert set(few) == {"value"} and many["value"] > few["value"] + 0.3 and pair["value"] > few["value"]
    [same] = run.predict([{"text": "cat cat cat", "text2": None}])
    assert same["value"] == pytest.approx(many["value"], abs=1e-5)
