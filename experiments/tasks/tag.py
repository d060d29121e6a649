"""Tagging of words, with entities or parts of speech, from a pretrained run or from nothing (Devlin et al., 2019).

    lmrep train --config=experiments/tasks/tag.py:init=runs/mine --workdir=runs/ner \\
        --config.data.train=eng.train --config.data.validation=eng.testa --config.data.test=eng.testb

The files have a word and its tag on each line, in the first and the last column, and a blank line after each sentence
(CoNLL-2003); or are CoNLL-U, whose tags are the parts of speech (UPOS). Tags such as B-PER and I-PER mark entities, and
the scheme (BIO, IOB1, BIOES, BILOU) is that of the training data; others, such as NOUN, are plain tags. A word is
tokenized by itself, and tagged at its first token: --config.objective.pieces=mean takes the mean of its tokens. Long
sentences are read in windows that overlap, so that every word is tagged and counts.

Predictions, metrics and a report are written to the workdir. `lmrep evaluate` writes predictions/validation.conll with
the columns word, tag and predicted tag, which `conlleval` and `lmrep score --metric=conlleval` read. `lmrep predict
--workdir=runs/ner "Ann left Rome ."` prints a line `word tag` for each word between spaces, and a blank line after each
sentence.

Cost: three epochs of a pretrained network; `size=tiny` without `init` trains a small network from nothing, which takes
some minutes on two cores. Expected with cased BERT base on CoNLL-2003: F1 of 92.4 on eng.testb (Devlin et al., 2019,
with the document around each sentence as context, which this file does not give).

recipe=bert, and the default for networks wider than 512: 3 epochs, batches of 32, Adam at 3e-5 after a warm-up over a
tenth of the steps, then linear to 0; sequences of 128 tokens. Narrower networks get higher rates and more epochs by
default (recipe=auto).

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    return compose_task(argument, "tagging", format={"stride": 64})
