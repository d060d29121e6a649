"""Parts of speech of a Universal Dependencies treebank (Nivre et al., 2020), 17 tags. Token accuracy.

    lmrep train --config=experiments/tasks/ud_pos.py:init=runs/bert,data=UD_English-EWT --workdir=runs/ewt

`data` is the folder of a treebank, with its .conllu files. Cost: 12,544 sentences an epoch for English EWT. Expected:
accuracy of 88 on its validation set with `size=tiny` and no `init`; a figure of a pretrained network is not recorded
here.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "ud_pos")
