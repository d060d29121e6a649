"""Classification and correlation metrics, against scikit-learn, SciPy and worked examples."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from lmrep.metrics.bootstrap import bootstrap, resampled
from lmrep.metrics.tasks import TASK_METRICS


def random_labels(n=300, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    gold = rng.integers(classes, size=n)
    return gold, np.where(rng.random(n) < 0.6, gold, rng.integers(classes, size=n))


def value(name, gold, predicted, **options):
    return TASK_METRICS[name].function(gold, predicted, **options)


def test_worked_example():
    gold, predicted = [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1]  # 2 true positives, 1 false, 1 missed, 2 true negatives
    assert value("accuracy", gold, predicted) == pytest.approx(4 / 6)
    assert value("f1", gold, predicted) == pytest.approx(2 / 3)
    assert value("matthews", gold, predicted) == pytest.approx((2 * 2 - 1 * 1) / 9)


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_equal_those_of_scikit_learn(classes):
    gold, predicted = random_labels(classes=classes)
    assert value("accuracy", gold, predicted) == pytest.approx(reference.accuracy_score(gold, predicted))
    assert value("matthews", gold, predicted) == pytest.approx(reference.matthews_corrcoef(gold, predicted))
    assert value("macro_f1", gold, predicted) == pytest.approx(reference.f1_score(gold, predicted, average="macro"))
    assert value("f1", gold, predicted, positive=0) == pytest.approx(
        reference.f1_score(gold == 0, predicted == 0))


def test_macro_f1_counts_a_class_that_is_predicted_and_never_gold():
    gold, predicted = [0, 0, 1], [0, 2, 1]
    assert value("macro_f1", gold, predicted) == pytest.approx(reference.f1_score(gold, predicted, average="macro"))


def test_names_give_the_same_values_as_numbers():
    gold, predicted = random_labels(classes=3)
    names = np.asarray(["neutral", "entailment", "contradiction"])
    for name in ("accuracy", "matthews", "macro_f1"):
        assert value(name, names[gold].tolist(), names[predicted].tolist()) == pytest.approx(
            value(name, gold, predicted))
    assert value("f1", names[gold], names[predicted], positive="neutral") == pytest.approx(
        value("f1", gold, predicted, positive=0))


def test_correlations_equal_those_of_scipy():
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 6, 200) / 2  # ties
    predicted = gold + rng.normal(size=200)
    assert value("pearson", gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted)[0])
    assert value("spearman", gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted)[0])


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_correlations_with_a_constant_are_zero(name):
    assert value(name, [0, 1, 1, 0], [1, 1, 1, 1]) == 0
    assert value(name, [1, 1, 1, 1], [0, 1, 1, 0]) == 0
    assert value(name, [1], [1]) == 0
    assert bootstrap(TASK_METRICS[name], [0, 1, 1, 0], [1, 1, 1, 1], samples=20) == (0, 0)


def test_f1_without_positives_is_zero():
    assert value("f1", [0, 0], [0, 0]) == 0


@pytest.mark.parametrize("name", ["accuracy", "matthews", "f1", "macro_f1", "pearson"])
def test_sums_give_the_value_and_the_resamples_of_the_function(name):
    gold, predicted = random_labels(n=60, classes=3)
    predicted[0] = 3  # a class that is never gold
    metric = TASK_METRICS[name]
    assert metric.figure(metric.sums(gold, predicted).sum(0)) == pytest.approx(value(name, gold, predicted))
    fast, slow = (resampled(f, gold, predicted, samples=30, seed=7) for f in (metric, metric._replace(sums=None)))
    np.testing.assert_allclose(fast, slow, atol=1e-12)
    assert len(set(fast)) > 10


def test_interval_of_a_mean_is_that_of_theory():
    rng = np.random.default_rng(3)
    gold = np.ones(10_000, int)
    predicted = (rng.random(10_000) < 0.8).astype(int)
    low, high = bootstrap(TASK_METRICS["accuracy"], gold, predicted)
    mean = predicted.mean()
    error = 1.96 * (mean * (1 - mean) / 10_000) ** 0.5
    assert low == pytest.approx(mean - error, abs=error / 8)
    assert high == pytest.approx(mean + error, abs=error / 8)


def test_the_seed_decides_the_interval():
    gold, predicted = random_labels()
    accuracy = TASK_METRICS["accuracy"]
    assert bootstrap(accuracy, gold, predicted, 50) == bootstrap(accuracy, gold, predicted, 50)
    assert bootstrap(accuracy, gold, predicted, 50) != bootstrap(accuracy, gold, predicted, 50, seed=1)
