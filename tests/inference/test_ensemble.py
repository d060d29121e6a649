"""Averaged predictions of several runs of a task."""

import json
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data.records.encoding import Units
from lmrep.inference import ensemble
from tests import runs, small


def units(*example):
    empty = np.zeros(0, np.int32)
    return Units(empty, empty, np.zeros(len(example) + 1, np.int64), np.array(example, np.int32), {})


def test_windows_are_averaged_first_and_probabilities_then():
    """The first run reads the second record in two windows."""
    one = {"log_probabilities": [*np.log([[0.9, 0.1], [0.2, 0.8], [0.8, 0.2]])]}
    other = {"log_probabilities": [*np.log([[0.5, 0.5], [0.7, 0.3]])]}
    found, outputs = ensemble.averaged([(units(0, 1, 1), one), (units(0, 1), other)], 2, "classification")
    assert found.example.tolist() == [0, 1]
    np.testing.assert_allclose(np.exp(outputs["log_probabilities"]), [[0.7, 0.3], [0.6, 0.4]])


def test_labels_of_a_text_are_averaged_as_probabilities_and_numbers_as_they_are():
    parts = [(units(0), {"logits": [np.log([p / (1 - p)])], "value": [np.float32(p)]}) for p in (0.2, 0.6)]
    arrays = ensemble.averaged(parts, 1, "multilabel")[1]
    assert arrays["logits"][0] == pytest.approx(np.log(0.4 / 0.6)) and arrays["value"][0] == pytest.approx(0.4)


def test_certain_predictions_stay_finite():
    """In float64, 1 - sigmoid(40) and exp(-800) are 0."""
    parts = [(units(0), {"logits": [np.array([y, -y])], "log_probabilities": [np.array([0.0, -20 * y])]})
             for y in (40.0, 50.0)]
    arrays = ensemble.averaged(parts, 1, "multilabel")[1]
    np.testing.assert_allclose(arrays["logits"][0], [40 + np.log(2), -40 - np.log(2)], atol=1e-4)
    np.testing.assert_allclose(arrays["log_probabilities"][0], [0, -800 - np.log(2)], atol=1e-4)


def test_predictions_of_words_are_refused():
    with pytest.raises(UserError, match="whole texts, and task 'tagging'"):
        ensemble.averaged([(units(0), {"log_probabilities": [np.zeros((3, 2))]})] * 2, 1, "tagging")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two copies of the shared run, and the step of the only checkpoint that each of them has."""
    home, pair = tmp_path_factory.mktemp("ensemble"), {}
    for name, choose in (("one", max), ("other", min)):
        workdir = runs.copy("classification", home / name)
        steps = [int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*")]
        pair[workdir] = choose(steps)
        for step in {*steps} - {choose(steps)}:
            shutil.rmtree(workdir / "checkpoints" / str(step))
    return pair


def test_a_run_predicts_and_is_evaluated_with_another_one(pair):
    (one, other), text = pair, "A dog"
    assert len({*pair.values()}) == 2
    first, second = (lmrep.load(workdir).predict([text])[0]["probabilities"] for workdir in pair)
    mixed = lmrep.load(one, ensemble=str(other)).predict([text])[0]["probabilities"]
    assert mixed == {label: pytest.approx((p + second[label]) / 2, abs=1e-6) for label, p in first.items()}
    answer = small.command("predict", "--workdir", one, f"--ensemble={other}", text)
    assert answer.code == 0 and f"{max(mixed.values()):.1%}" in answer.out
    assert small.command("evaluate", "--workdir", one, f"--ensemble={other}").code == 0
    assert json.loads((one / "eval.json").read_text())["ensemble"] == str(other)
    lines = (one / "predictions/validation-ensemble.jsonl").read_text().splitlines()
    assert len(lines) == 44 and json.loads(lines[0])["prediction"]["probabilities"].keys() == first.keys()


def test_runs_of_other_tasks_are_refused(pair):
    with pytest.raises(UserError, match="give runs of the same task and labels"):
        lmrep.load(next(iter(pair)), ensemble=str(runs.folder("masked") / "run"))
