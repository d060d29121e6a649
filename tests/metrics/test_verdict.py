"""The verdict on a run: the rows of its comparison, what it loses to, and the advice for each cause."""

import math

import pytest

from lmrep.metrics.verdict import BAG_OF_WORDS, RUN, START, TRIVIAL, Row, advice, comparison, lost, sentence, table
from lmrep.objectives import OBJECTIVES
from lmrep.tasks import TASKS

CLASSES = TASKS["classification"].objective.metrics
BAG = Row(BAG_OF_WORDS, "a bag of words", {"loss": 0.4, "accuracy": 0.8, "matthews": 0.6, "majority_accuracy": 0.5})
BEFORE = {"loss": 0.7, "accuracy": 0.4, "matthews": -0.2, "majority_accuracy": 0.5}
INTERVALS = {"accuracy": [0.7, 0.9], "matthews": [0.2, 0.7]}


def rows(accuracy=0.75, matthews=0.5, **fields):
    after = {"loss": 0.5, "accuracy": accuracy, "matthews": matthews, "majority_accuracy": 0.5}
    return comparison(CLASSES, BEFORE, after, step=20, bag=BAG, intervals=INTERVALS, **fields)


def test_rows_have_the_metrics_of_the_run():
    assert rows() == [
        Row(TRIVIAL, "the most frequent class", {"accuracy": 0.5}),
        Row(TRIVIAL, "a constant prediction", {"matthews": 0.0}),
        BAG._replace(metrics={"accuracy": 0.8, "matthews": 0.6}),
        Row(START, "this model before training", {"accuracy": 0.4, "matthews": -0.2}),
        Row(RUN, "this model at step 20", {"accuracy": 0.75, "matthews": 0.5})]


def test_the_unigram_predictor_is_one_row():
    after = {"loss": 2.0, "lm_loss": 2.0, "lm_accuracy": 0.25, "most_frequent_accuracy": 0.125}
    metrics = OBJECTIVES["causal"].metrics
    compared = comparison(metrics, {}, after, step=7, unigram_loss=4.0)
    assert compared == [Row(TRIVIAL, "token frequencies (unigram)", {"lm_loss": 4.0, "lm_accuracy": 0.125}),
                        Row(RUN, "this model at step 7", {"lm_loss": 2.0, "lm_accuracy": 0.25})]
    assert table(metrics, compared) == [
        ["", "Perplexity", "Next-token accuracy"], ["token frequencies (unigram)", "54.6", "12.50%"],
        ["this model at step 7", "7.4", "25.00%"]]


def test_the_table_ends_with_the_run_and_its_interval():
    assert table(CLASSES, rows(), INTERVALS)[-2:] == [
        ["this model at step 20", "75.00%", "0.5000"], ["  95 % interval", "70.00% to 90.00%", "0.2000 to 0.7000"]]
    assert table(CLASSES, comparison(CLASSES, {}, {}, step=1)) == []


@pytest.mark.parametrize(("accuracy", "matthews", "expected"), [
    (0.9, 0.8, ""), (0.8, 0.6, ""),  # equal to the bag of words
    (0.9, 0.5, "This run is no better than a bag of words (by matthews correlation, within the 95 % interval)."),
    (0.5, 0.0, "This run failed: it is no better than the most frequent class (by accuracy), nor a constant prediction "
               "(by matthews correlation), nor a bag of words (by accuracy and matthews correlation, within the 95 % "
               "interval).")])
def test_the_sentence_names_what_a_run_loses_to(accuracy, matthews, expected):
    assert sentence(CLASSES, rows(accuracy, matthews), INTERVALS) == expected


def test_a_run_that_ends_below_its_start_loses_to_it():
    after = {"accuracy": 0.8, "majority_accuracy": 0.5}
    compared = comparison(CLASSES, {"accuracy": 0.9}, after, before_step=3, step=5)
    [(row, names)] = lost(CLASSES, compared)
    assert (row.title, names) == ("this model at step 3", ["accuracy"])


def test_a_metric_that_is_not_a_number_loses():
    assert [names for _, names in lost(CLASSES, rows(math.nan))] == [
        ["accuracy"], ["accuracy", "matthews"], ["accuracy"]]


def lines(*losses, **fields):
    return [{"step": 10 * i, "loss": loss, **fields} for i, loss in enumerate(losses)]


UNDER, OVER, AWAY = "It underfits", "It overfits", "It diverged"
FALLEN = (0.7, 0.5, 0.35, 0.3, 0.3, 0.3, 0.3, 0.3)


@pytest.mark.parametrize(("train", "validation", "fields", "words"), [
    # The loss of a classifier that predicts the majority all along wanders by some per cent.
    ((0.70, 0.69, 0.71, 0.70, 0.715), (0.69, 0.70, 0.71), {}, (UNDER, "Raise", "more epochs")),
    ((0.70,), (0.69, 0.71), {}, (UNDER, "Raise")), ((), (0.69, 0.69), {}, (UNDER, "Raise")),
    ((3.392, 3.4, 3.406), (3.4, 3.41), {}, (UNDER, "the training loss went from 3.392 to 3.4")),
    ((6.0, 5.5, 5.0, 4.5, 4.0), (6.1, 4.1), {"labelled": False}, (UNDER, "still falling", "more steps")),
    ((0.7, 0.5, 0.3, 0.2, 0.1, 0.05), (0.7, 0.5, 0.4, 0.6, 0.9), {"examples": 5000}, (OVER, "patience", "dropout")),
    ((0.7, 0.5, 0.3, 0.2, 0.1, 0.05), (0.7, 0.5, 0.4, 0.6, 0.9), {"examples": 300}, (OVER, "300 examples are few")),
    ((0.7, "nan"), (0.7,), {}, (AWAY, "Lower")), ((0.7, 0.6), (0.7, "inf"), {}, (AWAY, "Lower")),
    ((0.7, 0.5, 0.3, 0.7, 0.7), (0.7, 0.3, 0.7), {}, (AWAY, "from 0.3 to 0.7", "Lower")),
    ((0.7, 9.0, 2.0, 0.7, 0.7), (0.7, 0.7), {}, (AWAY, "from 0.7 to 9", "Lower")),
    ((9.0, 0.8, 0.7, 0.7), (0.7, 0.7), {}, (AWAY, "0.7 before training, and rose to 9", "Lower")),
    ((10.9, 6.5, 5.4, 7.4, 9.1, 3.9), (0.69, 4.0, 22.0, 1.2), {}, (AWAY, "rose to 22", "Lower")),
    ((0.7, 0.3, 0.1, 0.01), (0.7, 0.5, 1.5, 2.5), {"examples": 5000}, (OVER,)),
    ((4.2, 4.0, 3.9), (0.7, 0.69), {}, ("The loss fell",)),  # with an auxiliary loss
    ((7.5,), (7.9, 6.4), {"tokens": 5000, "labelled": False}, ("The loss fell", "more steps")),
    (FALLEN, (0.7, 0.3), {"examples": 300}, ("300 examples are few", "init=", "bag of words")),
    (FALLEN, (0.7, 0.3), {"examples": 5000, "pretrained": True}, ("pretrained for longer", "bag of words")),
    (FALLEN, (0.7, 0.3), {"tokens": 5000, "labelled": False}, ("5,000 tokens are little text",)),
    (FALLEN, (0.7, 0.3), {"tokens": 10**8, "labelled": False}, ("more text", "larger network")),
    ((), (), {}, ("too few losses",)), ((0.7,), (0.7,), {}, ("too few losses", "more epochs"))])
def test_the_advice_follows_from_the_cause(train, validation, fields, words):
    text = advice(lines(*train), lines(*validation), **{"labelled": True} | fields)
    assert all(word in text for word in words), text
    assert ("Lower optimizer.learning_rate" in text) == text.startswith(AWAY)
    assert ("aise optimizer.learning_rate" in text) == text.startswith(UNDER)


def test_a_gradient_that_is_not_finite_diverged():
    assert advice(lines(0.7, 0.6, gradient_norm="inf"), []).startswith(AWAY)
