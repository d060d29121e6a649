"""SQuAD 2.0: SQuAD 1.1 with questions that the paragraph does not answer (Rajpurkar et al., 2018). Exact match and F1.

    lmrep train --config=experiments/tasks/squad2.py:init=runs/bert,data=squad --workdir=runs/squad2

`data` is the folder of train-v2.0.json and dev-v2.0.json. No answer is predicted where its score exceeds that of the
best span by more than a threshold. Every validation finds the threshold with the best F1: `exact_match` and `answer_f1`
are those at it, measured on the questions that it was chosen on, and `exact_match_at_0` and `answer_f1_at_0` those at
threshold 0. A checkpoint keeps its threshold, which `lmrep predict` and `lmrep evaluate` use;
--config.objective.threshold=-1.5 fixes one. `lmrep evaluate` writes predictions/validation.json and
validation-null_odds.json as the official script reads them.

Cost: 130,319 questions. Expected on dev: F1 of 76.3 and exact match of 73.7 with BERT base (Yang et al., 2019); no
answer to any question has 50.1. A small network from nothing (`size=tiny`) learns little.

recipe=bert, and the default for networks wider than 512: 2 epochs, batches of 48, Adam at 5e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 384 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=384, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    return compose_known(argument, "squad2")
