"""TREC: the class of a question (Li and Roth, 2002), six classes. Accuracy on the test set.

    lmrep train --config=experiments/tasks/trec.py:init=runs/bert,data=trec --workdir=runs/trec

`data` is the folder of the published files, or tfds. Cost: 5,452 questions, minutes on a GPU. Expected: a
verified figure is not recorded here.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "trec")
