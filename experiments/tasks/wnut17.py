"""WNUT-17: novel and emerging entities in tweets and comments, six types (Derczynski et al., 2017). Entity F1.

    lmrep train --config=experiments/tasks/wnut17.py:init=runs/bert,data=wnut17 --workdir=runs/wnut17

`data` is the folder of the published files. Choose a cased network. Cost: 3,394 tweets. Expected: F1 of 41.86 on the
test set for the best system of the shared task (Derczynski et al., 2017).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "wnut17")
