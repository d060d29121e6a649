"""Metrics of answers to questions, against worked examples of the SQuAD scripts' rules."""

import numpy as np
import pytest

from lmrep.metrics import answers, scripts
from lmrep.metrics.bootstrap import resampled
from lmrep.metrics.tasks import TASK_METRICS


@pytest.mark.parametrize("text, normalized", [
    ("The  Eiffel\tTower.", "eiffel tower"), ("U.S.A", "usa"), ("an apple a day", "apple day"),
    ("well-known", "wellknown"), ("theatre", "theatre"), ("«Été»", "«été»"), ("the", ""), ("", "")])
def test_normalization(text, normalized):
    assert answers.normalize_answer(text) == normalized


def test_overlap_counts_words_as_often_as_they_occur():
    assert answers.overlap("a b b c", "b b b") == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))
    assert answers.overlap("north", "south") == 0


def test_two_empty_answers_agree_in_squad_2_only():
    assert answers.overlap("the", "") == 0
    assert answers.overlap_or_empty("the", "") == 1
    assert answers.overlap_or_empty("north", "") == 0
    assert answers.exact("the", "") == 1


def test_the_best_gold_answer_counts():
    gold, predicted = [["in Paris", "Paris, France"], []], ["paris france", ""]
    assert TASK_METRICS["exact_match"].function(gold, predicted) == 1
    assert TASK_METRICS["answer_f1"].function(gold, ["Paris", "Rome"]) == pytest.approx((2 / 3) / 2)


def test_answers_without_words_do_not_count():
    assert TASK_METRICS["exact_match"].function([["The", "cat"]], [""]) == 0
    assert TASK_METRICS["exact_match"].function([["The"]], [""]) == 1  # no other answer: as if there were none


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize("name", ["exact_match", "answer_f1"])
def test_sums_give_the_resamples_of_the_function(name, version):
    gold = [["one two"], ["three"], ["the", "one"], ["four five six", "four"]] * 5
    predicted = ["one", "three", "a", "four six"] * 4 + ["x", "", "x", "four"]
    metric = TASK_METRICS[name]
    fast, slow = (resampled(f, gold, predicted, 10, 2, version=version) for f in (metric, metric._replace(sums=None)))
    np.testing.assert_allclose(fast, slow)


GOLD = {"a": ["Paris"], "b": ["the cat", "a dog"], "c": [], "d": []}
PREDICTED = {"a": "Paris", "b": "cat food", "c": "", "d": "Rome"}


def test_figures_by_answerability():
    _, figures = scripts.squad2(GOLD, PREDICTED)
    assert list(figures) == ["exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total", "NoAns_exact",
                             "NoAns_f1", "NoAns_total"]
    assert figures["exact"] == 50
    assert figures["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4)
    assert figures["HasAns_f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert (figures["NoAns_exact"], figures["total"], figures["NoAns_total"]) == (50, 4, 2)


def test_null_scores_above_the_threshold_mean_no_answer():
    null = {"a": -3.0, "b": 2.0, "c": 0.0, "d": 5.0}
    assert scripts.squad2(GOLD, PREDICTED, null, 1.0)[1]["exact"] == 75  # d is corrected; b was wrong anyway
    assert scripts.squad2(GOLD, PREDICTED, null, 1.0)[1]["f1"] == 75
    assert scripts.squad2(GOLD, PREDICTED, null, 5.0)[1]["exact"] == 50  # above, not at


def test_the_best_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    for _ in range(8):
        ids = [str(i) for i in range(30)]
        gold = {i: [["x y"], []][rng.integers(2)] for i in ids}
        predicted = {i: ["x", "x y", "z"][rng.integers(3)] for i in ids}
        null = {i: float(rng.normal() + 4) for i in ids}
        _, figures = scripts.squad2(gold, predicted, null)
        for name in ("exact", "f1"):
            scores = [scripts.squad2(gold, predicted, null, threshold)[1][name] for threshold in
                      (-1.0, *null.values())]
            assert figures[f"best_{name}"] == pytest.approx(max(scores))
            at = figures[f"best_{name}_thresh"]
            assert scripts.squad2(gold, predicted, null, at)[1][name] == pytest.approx(max(scores))


def test_questions_without_a_prediction_are_left_out():
    assert scripts.squad2(GOLD, {"a": "Paris"})[1]["total"] == 1
