"""TREC: the class of a question (Li and Roth, 2002), six classes. Accuracy on the test set.

    lmrep train --config=experiments/tasks/trec.py:init=runs/bert,data=trec --workdir=runs/trec

`data` is the folder of the published files, or tfds. Cost: 5,452 questions, minutes on a GPU. Expected: accuracy of
95.8 with CoVe (McCann et al., 2017).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "trec")
