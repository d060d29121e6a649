"""BLEU and chrF, against sacreBLEU."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from lmrep.metrics import translation
from lmrep.metrics.bootstrap import bootstrap
from lmrep.metrics.tasks import TASK_METRICS

GOLD = ["The cat sat on the mat.", "It is raining, again!", "Zoë reads «books» in Łódź.", "Two dogs."]
PREDICTED = ["The cat sat on a mat.", "It rains again!", "zoë reads books in Łódź .", ""]


@pytest.mark.parametrize("name, metric", [("bleu", BLEU()), ("chrf", CHRF())])
def test_figures_and_their_sums_are_sacrebleus(name, metric):
    own = TASK_METRICS[name]
    assert own.function(GOLD, PREDICTED) == metric.corpus_score(PREDICTED, [GOLD]).score
    for some in ([0, 1, 2, 3], [0, 0, 2], [3], [1]):
        gold, predicted = ([texts[i] for i in some] for texts in (GOLD, PREDICTED))
        sums = own.sums(GOLD, PREDICTED)[some].sum(0)
        np.testing.assert_allclose(own.figure(sums), metric.corpus_score(predicted, [gold]).score, atol=1e-9)
    low, high = bootstrap(own, GOLD, PREDICTED, samples=50)
    assert 0 <= low < own.function(GOLD, PREDICTED) < high <= 100


def test_the_signature_names_what_figures_depend_on():
    assert translation.signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "case:lc" in translation.signature(lowercase=True) and "tok:intl" in translation.signature("intl")
    assert TASK_METRICS["bleu"].function(GOLD, [text.upper() for text in GOLD], lowercase=True) == pytest.approx(100)
