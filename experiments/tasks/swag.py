"""SWAG: which sentence follows? (Zellers et al., 2018), four choices. Accuracy.

    lmrep train --config=experiments/tasks/swag.py:init=runs/bert,data=swag --workdir=runs/swag

`data` is the folder of the published files. Cost: 73,546 examples of four choices. Expected: accuracy of 86.3 with
BERT large on test (Devlin et al., 2019).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "swag")
