"""Parts of speech of a Universal Dependencies treebank (Nivre et al., 2020), 17 tags. Token accuracy.

    lmrep train --config=experiments/tasks/ud_pos.py:init=runs/bert,data=UD_English-EWT --workdir=runs/ewt

`data` is the folder of a treebank, with its .conllu files. Cost: 12,544 sentences an epoch for English EWT. Expected:
accuracy of 88 on its validation set with `size=tiny` and no `init`; a figure of a pretrained network is not recorded
here.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "ud_pos")
