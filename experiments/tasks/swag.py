"""SWAG: which sentence follows? (Zellers et al., 2018), four choices. Accuracy.

    lmrep train --config=experiments/tasks/swag.py:init=runs/bert,data=swag --workdir=runs/swag

`data` is the folder of the published files. Cost: 73,546 examples of four choices. Expected: accuracy of 86.3 with
BERT large on test (Devlin et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 16, Adam at 2e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "swag")
