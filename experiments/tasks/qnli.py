"""QNLI: does a sentence answer a question? (Rajpurkar et al., 2016; GLUE). Accuracy.

    lmrep train --config=experiments/tasks/qnli.py:init=runs/bert,data=glue/QNLI --workdir=runs/qnli

`data` is the folder of the published files, or tfds. Cost: 104,743 pairs. Expected: accuracy of 91.8 with BERT base
on dev (Sanh et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "qnli")
