"""SST-2 from the phrase trees of the Stanford Sentiment Treebank (Socher et al., 2013): trained on every phrase,
evaluated on sentences; neutral ones are left out. Accuracy.

    lmrep train --config=experiments/tasks/sst2_trees.py:init=runs/bert,data=sst/trees --workdir=runs/sst2_trees

`data` is the folder of the published files. Cost: 77,616 phrases. Expected: about the accuracy of sst2.py, whose
phrases come from the same trees.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "sst2_trees")
