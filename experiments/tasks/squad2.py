"""SQuAD 2.0: as SQuAD 1.1, but half of the questions have no answer in the paragraph (Rajpurkar et al., 2018).

    lmrep train --config=experiments/tasks/squad2.py:init=runs/bert --workdir=runs/squad2 \\
        --config.data.train=train-v2.0.json --config.data.validation=dev-v2.0.json

No answer is predicted where its score exceeds that of the best span by more than a threshold. Each validation finds the
threshold with the best F1; `exact_match` and `answer_f1` are those at it, `exact_match_at_0` and `answer_f1_at_0` those
at threshold 0. The checkpoint keeps its threshold, and `lmrep predict` uses it; --config.objective.threshold=-1.5 sets
another one.

Cost: 130,319 questions, two epochs of about 11,000 steps each. Expected on dev with BERT base: F1 76.3 and exact match
73.7 (Yang et al., 2019); no answer to any question has 50.1.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "span_extraction", epochs=2.0, batch_size=12, length=384, format={"long": "windows"},
                        objective={"unanswerable": True})
