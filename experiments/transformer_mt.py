"""The Transformer (Vaswani et al., 2017): translation by attention alone.

    lmrep train --config=experiments/transformer_mt.py:source=en,target=de --workdir=runs/wmt \\
        --config.data.train=wmt14/train.en --config.data.validation=wmt14/newstest2013.en
    lmrep average runs/wmt runs/wmt-averaged --last=5                      # size=big: the last 20
    lmrep evaluate --workdir=runs/wmt-averaged --files=wmt14/newstest2014.en \\
        --beams=4 --length_penalty=0.6 --penalty=gnmt

Files are aligned: line i of train.de, beside train.en, is the translation of line i of train.en. Other formats, such as
TSV, JSON Lines and TFDS, are read with --config.data.format=auto and --config.data.columns. The tokenizer is joint: it
is trained on both languages.

Expected: BLEU 27.3 (big: 28.4) on newstest2014 from English to German, 38.1 (41.8) to French, on tokenized text.
Cost: 12 hours (3.5 days) on 8 P100s. Published are the network, the schedule, the batch of about 25,000 tokens of each
language, 100,000 steps (300,000), and the search; the vocabulary was byte-pair encoding of about 37,000 tokens.

On two cores, in about an hour, on the 29,000 pairs of Multi30k:

    lmrep train --config=experiments/transformer_mt.py:size=tiny,source=de,target=en --workdir=runs/multi30k \\
        --config.data.train=multi30k/train.de --config.data.validation=multi30k/val.de \\
        --config.data.test=multi30k/test_2016_flickr.de

size=tiny sets steps=3000, batch_size=16, length=128, vocab_size=6000, learning_rate=0.00220971, layers=2, width=256,
heads=4 and mlp=1024.

Choices after the colon:

    size       base; big; tiny: 2 layers of width 256
    source     suffix of the files of the source, de
    target     suffix of the files of the target, en
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_task


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(argument, size=("base", ("base", "big", "tiny")), source="de", target="en")
    config = compose_task(
        "size=tiny" if chosen.size == "tiny" else f"model=transformer_{chosen.size}", "text_to_text",
        base="transformer_base",
        data={"format": "parallel", "columns": {"text": chosen.source, "target": chosen.target}})
    config.name = "transformer_mt"
    config.format.packed = True  # so that every batch has about as many tokens
    config.length, config.batch_size, config.steps, warmup = 256, 96, 100_000, 4000
    config.objective.update({"label_smoothing": 0.1, "max_target": 256})
    # Checkpoints are about ten minutes apart on the paper's machine, and kept for its average.
    config.checkpoint.update({"best": "bleu", "every": 1250, "keep": 5})
    config.evaluation.every = 5000
    if chosen.size == "big":
        config.steps = 300_000
        config.checkpoint.update({"every": 625, "keep": 20})
    if chosen.size == "tiny":
        config.length, config.batch_size, config.steps, warmup = 128, 16, 3000, 800
        config.model.update({"width": 256, "layers": 2, "heads": 4, "mlp": 1024, "max_length": 256, "dropout": 0.1})
        config.tokenizer.vocab_size = 6000
        config.objective.max_target = 64
        config.checkpoint.every = config.evaluation.every = 500
    config.optimizer.update({"name": "adamw", "betas": (0.9, 0.98), "eps": 1e-9, "bias_correction": True, "clip": 0.0,
                             "weight_decay": 0.0, "learning_rate": (config.model.width * warmup) ** -0.5})
    config.optimizer.schedule.update({"name": "inverse_sqrt", "warmup": warmup, "warmup_fraction": 0.0})
    return config
