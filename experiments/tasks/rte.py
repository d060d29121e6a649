"""RTE: does a text entail a hypothesis? (GLUE). Accuracy. Small: use recipe=mosbach and several seeds.

    lmrep train --config=experiments/tasks/rte.py:init=runs/bert,data=glue/RTE --workdir=runs/rte

`data` is the folder of the published files, or tfds. Cost: 2,490 pairs, minutes on a GPU. Expected: accuracy of 69.3
with BERT base on dev (Sanh et al., 2019).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "rte")
