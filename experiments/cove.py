"""CoVe (McCann et al., 2017): the vectors of an LSTM that was trained to translate.

    lmrep train --config=experiments/cove.py:source=en,target=de --workdir=runs/mt-lstm \\
        --config.data.train=wmt17/train.en --config.data.validation=wmt17/newstest2016.en
    lmrep train --config=experiments/tasks/classify.py:features=runs/mt-lstm,network=bilstm --workdir=runs/sst-cove \\
        --config.data.train=train.tsv --config.data.validation=dev.tsv --config.objective.features.layers=last

Two bidirectional LSTM layers of 300 a direction read English; an attention decoder with input feeding generates German.
The encoder's vectors are then the features of a task, here beside nothing; `vectors=glove.840B.300d.txt` adds the word
vectors, and `objective.features.layers` chooses layer 1, 2 or a learned mix of all.

Expected: errors of 8.2 on IMDb and 4.2 on TREC-6 (as Howard and Ruder, 2018, quote them), by the paper's own network
for classification, which is not here. Its LSTM read fixed GloVe vectors; this one learns its table, of the words of a
joint vocabulary of subwords. Published are the sizes, the optimizer (SGD at rate 1, halved when validation worsens),
dropout of 0.2 and batches of 64; the rate is constant here. Cost: the paper does not state the cost.

On two cores, in less than an hour, on the 29,000 pairs of Multi30k:

    lmrep train --config=experiments/cove.py:size=tiny --workdir=runs/mt-lstm \\
        --config.data.train=multi30k/train.en --config.data.validation=multi30k/val.en

Choices after the colon:

    size       base; tiny: a width of 256
    attention  general; dot, none (without input feeding)
    source     suffix of the files of the source, en
    target     suffix of the files of the target, de
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_task

SIZES = {"base": {"width": 600, "embedding": 300, "layers": 2}, "tiny": {"width": 256, "embedding": 128, "layers": 1}}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(argument, size=("base", tuple(SIZES)), source="en", target="de",
                                    attention=("general", ("general", "dot", "none")))
    tiny = chosen.size == "tiny"
    config = compose_task(
        "size=tiny", "text_to_text", base="seq2seq_lstm",
        data={"format": "parallel", "columns": {"text": chosen.source, "target": chosen.target}})
    config.name = "cove"
    config.model.update(SIZES[chosen.size])
    config.model.update({"attention": chosen.attention, "input_feeding": chosen.attention != "none", "dropout": 0.2})
    config.tokenizer.update({"name": "sentencepiece_bpe", "vocab_size": 6000 if tiny else 32_000, "lowercase": False})
    config.format.long = "truncate"
    config.length, config.batch_size, config.steps = 64, 64, 3000 if tiny else 300_000
    config.objective.max_target = 64
    config.optimizer.update({"name": "adamw", "bias_correction": True, "learning_rate": 2e-3, "weight_decay": 0.0,
                             "clip": 5.0} if tiny else
                            {"name": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "clip": 5.0})
    config.optimizer.schedule.update({"name": "linear" if tiny else "constant", "warmup": 0, "warmup_fraction": 0.0})
    config.checkpoint.best = "bleu"
    config.evaluation.every = 500 if tiny else 5000
    return config
