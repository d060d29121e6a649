"""SWAG: which sentence follows? (Zellers et al., 2018), four choices. Accuracy.

    lmrep train --config=experiments/tasks/swag.py:init=runs/bert,data=swag --workdir=runs/swag

`data` is the folder of the published files. Cost: 73,546 examples of four choices. Expected: accuracy of 86.3 with
BERT large on test (Devlin et al., 2019).

By default (recipe=bert): 3 epochs, batches of 16, Adam at 2e-5 after a warm-up over a tenth of the steps, then linear
to 0; sequences of 128 tokens.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "swag")
