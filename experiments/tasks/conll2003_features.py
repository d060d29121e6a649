"""CoNLL-2003 names from the vectors of a frozen encoder, as ELMo and TagLM use them (Peters et al., 2017, 2018).

    lmrep train --config=experiments/tasks/conll2003_features.py:features=runs/bert,vectors=glove.txt,data=conll2003 \\
        --workdir=runs/conll2003_features --config.cache_features=true

A learned mix of all layers of the frozen run or published directory `features`, beside word vectors (`vectors`, GloVe's
text format; may be left out) and a convolution over the characters of each word, goes into two bidirectional LSTM
layers of width 200 and a CRF, which decodes by Viterbi. Only these are trained; dropout on the input of each LSTM layer
is 0.5, and there is none on the mix before. `data` is the folder of the published files. Each part may be left out or
exchanged: --config.objective.features.layers=last (or 0, sum:all, concat:3,4),
--config.objective.features.placement=both (between, as TagLM), --config.objective.characters.filters=0,
:network=linear.

Cost: 14,041 sentences an epoch; with `cache_features` the encoder runs over them once, and its vectors take 4 bytes x
tokens x layers x width on the disk. Expected: F1 of 92.22 on eng.testb with ELMo (Peters et al., 2018;
`experiments/elmo.py`), and 96.1 on eng.testa with the last four layers of BERT base (Devlin et al., 2019, section 5.3:
features.layers=concat:9,10,11,12, two layers of width 768, no CRF); neither has been run with this file.

By default: 20 epochs, batches of 32, Adam at 0.001 after a warm-up over a tenth of the steps, then linear to 0;
sequences of 128 tokens.

size=tiny sets batch_size=16, length=128, vocab_size=4096, learning_rate=0.001, layers=2, width=128, heads=4 and
mlp=512; the epochs are as many as 1,500 updates take, 3 to 30.
"""

from lmrep.experiment.fine_tuning import compose_known


def get_config(argument=""):
    config = compose_known(argument, "conll2003", network="bilstm_crf", model="none")
    config.objective.bilstm.update({"width": 200, "layers": 2})
    config.objective.characters.filters = 30
    config.objective.features.update({"l2": 0.1, "dropout": 0.0})
    return config
