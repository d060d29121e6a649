"""SWAG: which sentence follows? (Zellers et al., 2018), four choices. Accuracy.

    lmrep train --config=experiments/tasks/swag.py:init=runs/bert,data=swag --workdir=runs/swag

`data` is the folder of the published files. Cost: 73,546 examples of four choices. Expected: accuracy of 86.3 with
BERT large on test (Devlin et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 16, Adam at 2e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "swag")
