"""QNLI: does a sentence answer a question? (Rajpurkar et al., 2016; GLUE). Accuracy.

    lmrep train --config=experiments/tasks/qnli.py:init=runs/bert,data=glue/QNLI --workdir=runs/qnli

`data` is the folder of the published files, or tfds. Cost: 104,743 pairs. Expected: accuracy of 91.8 with BERT base
on dev (Sanh et al., 2019).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "qnli")
