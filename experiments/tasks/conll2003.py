"""CoNLL-2003: names of persons, places, organizations and others (Tjong Kim Sang and De Meulder, 2003). Entity F1.

    lmrep train --config=experiments/tasks/conll2003.py:init=runs/bert,data=conll2003 --workdir=runs/conll2003

`data` is the folder of the published files eng.train, eng.testa and eng.testb, whose tags are IOB1; B- tags that follow
no entity of their type begin one, and are counted. Choose a cased network. Cost: 14,041 sentences. Expected on
eng.testb: F1 of 92.4 with BERT base, 92.8 with BERT large (Devlin et al., 2019), which read the document around each
sentence; this file gives sentences alone.

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "conll2003")
