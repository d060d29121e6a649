"""SQuAD 1.1: answers to questions are spans of a paragraph of Wikipedia (Rajpurkar et al., 2016).

    lmrep train --config=experiments/tasks/squad1.py:init=runs/bert --workdir=runs/squad1 \\
        --config.data.train=train-v1.1.json --config.data.validation=dev-v1.1.json

`lmrep predict --workdir=runs/squad1` answers questions: a question, a tab and the text that has the answer.

Cost: 87,599 questions, two epochs of about 7,400 steps each. Expected with BERT base: F1 88.4 and exact match 81.3 on
dev, with BERT large 90.9 and 84.4 (google-research/bert). `size=tiny` without `init` trains a small network from
nothing, on two cores, which learns little.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "span_extraction", epochs=2.0, batch_size=12, length=384, format={"long": "windows"})
