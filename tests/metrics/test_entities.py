"""Entity metrics, against worked examples and seqeval."""

import random

import numpy as np
import pytest
from seqeval import scheme as schemes
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from lmrep.metrics import entities
from lmrep.metrics.bootstrap import resampled
from lmrep.metrics.tasks import TASK_METRICS

PREFIXES = {"IOB1": "BI", "IOB2": "BI", "IOE2": "IE", "IOBES": "BIES", "BILOU": "BILU"}


def random_tags(prefixes="BI", n=40, seed=0):
    rng = random.Random(seed)
    tags = ["O", *(f"{prefix}-{type_}" for prefix in prefixes for type_ in ("PER", "LOC"))]
    gold = [[rng.choice(tags) for _ in range(rng.randrange(1, 12))] for _ in range(n)]
    return gold, [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in sequence] for sequence in gold]


def value(name, gold, predicted, **options):
    return TASK_METRICS[name].function(gold, predicted, **options)


def test_conll_repairs_an_entity_that_begins_with_i_and_strict_mode_does_not():
    gold, predicted = [["B-PER", "I-PER", "O", "B-LOC"]], [["I-PER", "I-PER", "O", "B-LOC"]]
    assert value("conll_f1", gold, predicted) == 1
    assert value("entity_precision", gold, predicted) == 1  # the broken one is not counted as predicted
    assert value("entity_recall", gold, predicted) == 0.5
    assert value("entity_f1", gold, predicted) == pytest.approx(2 / 3)
    assert value("entity_f1", gold, predicted, strict=False) == 1
    assert value("token_accuracy", gold, predicted) == 0.75


@pytest.mark.parametrize("scheme", PREFIXES)
def test_strict_mode_is_that_of_seqeval(scheme):
    gold, predicted = random_tags(PREFIXES[scheme])
    options = {"mode": "strict", "scheme": getattr(schemes, scheme)}
    for name, reference in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        assert value(f"entity_{name}", gold, predicted, scheme=scheme) == pytest.approx(
            reference(gold, predicted, **options))


def test_default_mode_is_that_of_seqeval():
    gold, predicted = random_tags("BIES")
    assert value("entity_f1", gold, predicted, strict=False) == pytest.approx(f1_score(gold, predicted))
    assert value("token_accuracy", gold, predicted) == pytest.approx(accuracy_score(gold, predicted))


def test_conll_equals_seqeval_in_default_mode_where_tags_are_b_i_and_o():
    gold, predicted = random_tags("BI")
    assert value("conll_f1", gold, predicted) == pytest.approx(f1_score(gold, predicted))


@pytest.mark.parametrize("tags, spans", [
    ("B-A I-A O", 1), ("I-A I-A O", 1), ("B-A B-A", 2), ("B-A I-B", 2), ("I-A B-A", 2), ("O I-A O I-A", 2),
    ("B-A E-A E-A", 2), ("I-A E-A I-A", 2), ("E-A B-A", 1), ("S-A S-A", 1), ("S-A S-B", 2), (". O", 0),
])
def test_conll_entities(tags, spans):
    tags = tags.split()
    total = sum(entities.conll_counts(tags, tags).values(), np.zeros(3))
    np.testing.assert_array_equal(total, [spans] * 3)


def test_conll_counts_by_type():
    counts = entities.conll_counts(["B-A", "I-A", "O", "B-B"], ["B-A", "I-A", "O", "B-C"])
    assert {type_: column.tolist() for type_, column in counts.items()} == {
        "A": [1, 1, 1], "B": [0, 1, 0], "C": [0, 0, 1]}


@pytest.mark.parametrize("name", ["entity_f1", "conll_f1", "entity_precision", "conll_recall", "token_accuracy"])
def test_sums_give_the_resamples_of_the_function(name):
    gold, predicted = random_tags(n=20)
    metric = TASK_METRICS[name]
    fast, slow = (resampled(f, gold, predicted, samples=10, seed=2) for f in (metric, metric._replace(sums=None)))
    np.testing.assert_allclose(fast, slow)
    assert len(set(fast)) > 5


def test_no_entities_at_all_give_zero():
    for name in ("entity_f1", "entity_precision", "conll_f1", "conll_recall"):
        assert value(name, [["O", "O"]], [["O", "O"]]) == 0
