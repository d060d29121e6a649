"""WiC: whether a word has one meaning in two contexts (Pilehvar and Camacho-Collados, 2019). Accuracy.

    lmrep train --config=experiments/tasks/wic.py:init=runs/bert,data=WiC_dataset --workdir=runs/wic

`data` is the folder of the published files (train/train.data.txt and train.gold.txt beside it, dev/, test/), or of
SuperGLUE's (train.jsonl, val.jsonl, test.jsonl). Other files are given by --config.data.train and so on. A linear layer
reads the vector of the pair and, beside it, those of the word in both contexts, the means over its tokens, as in
SuperGLUE's BERT baseline (Wang et al., 2019, section 4.1). Predictions are lines of T and F, or SuperGLUE's JSON Lines.

Cost: 5,428 short pairs. Expected: accuracy of about 69.5 on the test set with BERT large (Wang et al., 2019); half of
the examples are of each class. It has not been run with this file.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "wic")
