"""CoLA: is a sentence grammatical? (Warstadt et al., 2019; GLUE). Matthews correlation.

    lmrep train --config=experiments/tasks/cola.py:init=runs/bert,data=glue/CoLA --workdir=runs/cola

`data` is the folder of the published files, or tfds. Cost: 8,551 examples, minutes on a GPU. Expected: Matthews
correlation of 56.3 with BERT base on dev (Sanh et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "cola")
