"""TREC: the class of a question (Li and Roth, 2002), six classes. Accuracy on the test set.

    lmrep train --config=experiments/tasks/trec.py:init=runs/bert,data=trec --workdir=runs/trec

`data` is the folder of the published files, or tfds. Cost: 5,452 questions, minutes on a GPU. Expected: a
verified figure is not recorded here.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "trec")
