"""CoVe (McCann et al., 2017): the vectors of an LSTM that was trained to translate, as features of tasks.

    lmrep train --config=experiments/cove.py:source=en,target=de,vectors=glove.840B.300d.txt --workdir=runs/mt-lstm \\
        --config.data.train=wmt17/train.en --config.data.validation=wmt17/newstest2016.en
    lmrep train --config=experiments/tasks/classify.py:features=runs/mt-lstm,vectors=glove.840B.300d.txt,network=bcn \\
        --workdir=runs/sst-cove --config.data.train=train.tsv --config.data.validation=dev.tsv \\
        --config.objective.features.layers=last

Two bidirectional LSTM layers of 300 a direction read English; an attention decoder with input feeding generates German.
The encoder's vectors are then the features of a task, beside word vectors. `objective.features.layers` chooses them:
last (or 2) is the output of the second LSTM layer, which is CoVe; 1 is the output of the first; 0 are the embeddings,
which are the fixed GloVe vectors where `vectors` was given; mix:all is a learned sum of layers of one width, so mix:1,2
where embeddings are narrower. The released code numbers the LSTM layers from 0. `network=bcn` is the paper's network
for classification, the biattentive classification network.

With `vectors`, texts are words between spaces: give tokenized text, lower-cased as by the released commands. The table
of the source starts from the file, is not trained, and has 0 for words that the file lacks. Words of a task that the
translation data lacks are unknown to the LSTM, and have the vector 0; in the paper, all of GloVe's words are known.
Without `vectors`, the tokens are subwords of a joint vocabulary, whose vectors are learned.

Published are the network (the preset `cove`, but that its vocabulary is of one language, and here of both), dropout of
0.2, batches of 64 and the optimizer: SGD at rate 1, halved when validation worsens, to the end below 0.03. Here a
validation that is not the best so far halves it; it is measured every 5,000 steps, in the paper after each epoch.
Expected: errors of 8.2 on IMDb and 4.2 on TREC-6 (as Howard and Ruder, 2018, quote them), with 7 million pairs of WMT
2017 and the paper's character n-grams; this file has not been run on them. Cost: the paper does not state it.

On two cores, in less than an hour, on the 29,000 pairs of Multi30k, with Adam:

    lmrep train --config=experiments/cove.py:size=tiny --workdir=runs/mt-lstm \\
        --config.data.train=multi30k/train.en --config.data.validation=multi30k/val.en

size=tiny sets steps=3000, batch_size=64, length=64, vocab_size=6000, learning_rate=0.002, layers=1, width=256 and
embedding=128.

Choices after the colon:

    size       base; tiny: a width of 256
    attention  general; dot, none (without input feeding)
    source     suffix of the files of the source, en
    target     suffix of the files of the target, de
    vectors    a text file of word vectors, as GloVe's, for the source
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_task

TABLE = "encoder/source_embedding/token"


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(argument, size=("base", ("base", "tiny")), source="en", target="de",
                                    attention=("general", ("general", "dot", "none")), vectors="")
    config = compose_task(
        "size=tiny" if chosen.size == "tiny" else "model=cove", "text_to_text", base="cove",
        data={"format": "parallel", "columns": {"text": chosen.source, "target": chosen.target}})
    config.name = "cove"
    config.length, config.batch_size, config.steps = 64, 64, 300_000
    config.objective.max_target = 64
    config.model.update({"attention": chosen.attention, "input_feeding": chosen.attention != "none"})
    config.tokenizer.update({"name": "sentencepiece_bpe", "lowercase": False, "vocab_size": 32_000})
    if chosen.vectors:
        config.tokenizer.update({"name": "words", "vocab_size": 100_000})
        config.init_vectors = {TABLE: chosen.vectors}
        config.optimizer.multipliers = {TABLE: 0.0}
    config.optimizer.update({"name": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "clip": 5.0})
    config.optimizer.schedule.update({"name": "plateau", "warmup_fraction": 0.0, "factor": 0.5, "final": 0.03})
    config.checkpoint.best = "bleu"
    config.evaluation.every = 5000
    if chosen.size == "tiny":
        config.steps, config.evaluation.every = 3000, 500
        config.model.update({"width": 256, "embedding": 128, "layers": 1, "dropout": 0.2})
        config.tokenizer.vocab_size = 6000
        config.optimizer.update({"name": "adamw", "bias_correction": True, "learning_rate": 2e-3})
        config.optimizer.schedule.update({"name": "linear", "final": 0.0})
    return config
