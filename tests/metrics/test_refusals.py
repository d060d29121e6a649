"""What metrics refuse: gold values, predictions and options, and what the message must name."""

import pytest

from lmrep.core.errors import UserError
from lmrep.metrics import scripts
from lmrep.metrics.tasks import TASK_METRICS

TAGS = [["O"], ["O"]]


@pytest.mark.parametrize(("metric", "gold", "predicted", "options", "named"), [
    ("accuracy", [1, 0], [1], {}, "2 gold values and 1 predictions"),
    ("matthews", [1, 0], [1], {}, "2 gold values and 1 predictions"),
    ("bleu", ["a", "b"], ["a"], {}, "2 gold values and 1 predictions"),
    ("accuracy", [], [], {}, "no examples"),
    ("matthews", [1, 0], ["1", "0"], {}, "same type"),
    ("pearson", [1.0, 2.0], [1.0, float("nan")], {}, "prediction 2"),
    ("spearman", ["a", 2.0], [1.0, 1.0], {}, "gold value 1"),
    ("f1", ["yes", "no"], ["yes", "yes"], {}, "'no', 'yes'"),
    ("conll_f1", TAGS, [["O"], ["O", "O"]], {}, "sequence 2"),
    ("entity_f1", [["B-PER", "E-PER"]], [["O", "O"]], {}, "'E-PER'"),
    ("entity_f1", [["PER"]], [["O"]], {}, "'PER'"),
    ("entity_f1", TAGS, TAGS, {"scheme": "BOI"}, "'BOI'"),
])
def test_values_are_refused(metric, gold, predicted, options, named):
    with pytest.raises(UserError, match=named):
        TASK_METRICS[metric].function(gold, predicted, **options)


def test_answers_to_other_questions_are_refused():
    with pytest.raises(UserError, match="no examples"):
        scripts.squad2({"a": ["Paris"]}, {"z": "Paris"})
