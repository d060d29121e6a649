"""Classification of texts or pairs of texts, from a pretrained run or from nothing (Devlin et al., 2019).

    lmrep train --config=experiments/tasks/classify.py:init=runs/mine --workdir=runs/sst2 \\
        --config.data.train=train.tsv --config.data.validation=dev.tsv

The files have the columns text, label and, for pairs, text2; others are named by --config.data.columns.text=sentence.
Predictions, metrics and a report are written to the workdir; `lmrep predict --workdir=runs/sst2 "A fine film."` labels
texts.

Cost: three epochs of a pretrained network; `size=tiny` without `init` trains a small network from nothing, which takes
some minutes on two cores. Expected with BERT base on SST-2: accuracy 92.7 on dev (Devlin et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "classification")
