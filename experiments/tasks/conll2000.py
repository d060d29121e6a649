"""CoNLL-2000: chunks of sentences, such as noun and verb phrases (Tjong Kim Sang and Buchholz, 2000). F1 of chunks.

    lmrep train --config=experiments/tasks/conll2000.py:init=runs/bert,data=conll2000 --workdir=runs/conll2000

`data` is the folder of the published files train.txt and test.txt, whose tags are BIO. No validation file is published:
1,000 sentences of train.txt, drawn at random, are validation data and not trained on, as Peters et al. (2017) do
(--config.data.held_out). Tags that only test.txt has count as errors. Cost: 7,936 sentences. Expected: F1 of 96.8 with
ELECTRA base (the README of google-research/electra).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "conll2000")
