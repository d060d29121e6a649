"""SQuAD 1.1: answers to questions are spans of a paragraph of Wikipedia (Rajpurkar et al., 2016). Exact match and F1.

    lmrep train --config=experiments/tasks/squad1.py:init=runs/bert,data=squad --workdir=runs/squad1

`data` is the folder of train-v1.1.json and dev-v1.1.json. Long paragraphs are read in windows that begin
`format.stride` tokens apart. `lmrep predict --workdir=runs/squad1` answers questions: each line has a question, a tab
and a text. `lmrep evaluate` writes predictions/validation.json as the official script reads it.

Cost: 87,599 questions. Expected on dev: F1 of 88.5 with BERT base, 90.9 with BERT large (Devlin et al., 2019). A small
network from nothing (`size=tiny`) learns little.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 5e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 384 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=384, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "squad1")
