"""Multiple choice: which of several texts continues a text, or answers it, such as SWAG (Zellers et al., 2018).

    lmrep train --config=experiments/tasks/choose.py:init=runs/mine --workdir=runs/swag \\
        --config.data.train=train.csv --config.data.validation=val.csv

The files are SWAG's or CODAH's, or JSON Lines such as {"text": "It rains.", "choices": ["I get wet.", "I eat."],
"label": 0}, where label counts from 0. Examples may have different numbers of choices. The network reads each choice
with its text as a pair, so that a step computes batch_size times as many sequences as there are choices.
`lmrep predict --workdir=runs/swag` chooses between the texts of a line, which tabs separate.

Cost: three epochs of a pretrained network; `size=tiny` without `init` trains a small network from nothing, which takes
some minutes on two cores. Expected with BERT large on SWAG: accuracy 86.3 on the test set (Devlin et al., 2019).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "multiple_choice")
