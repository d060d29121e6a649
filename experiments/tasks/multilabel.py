"""Multi-label classification: any number of labels for each text or pair of texts, such as the topics of news.

    lmrep train --config=experiments/tasks/multilabel.py:init=runs/mine --workdir=runs/topics \\
        --config.data.train=train.csv --config.data.validation=dev.csv --config.data.columns.labels=sport,politics,art

The files have the columns text, labels and, for pairs, text2; others are named by --config.data.columns.text=comment.
The labels are a list (JSON), a text with separators (--config.data.label_separator=';'), or columns of 0 and 1, as
here. The loss is the mean binary cross-entropy, as of Hugging Face's `problem_type="multi_label_classification"`.

Cost: three epochs of a pretrained network; `size=tiny` without `init` trains a small network from nothing, which takes
some minutes on two cores. Expected: figures above those of the same labels for every text, which are printed beside.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "multilabel")
