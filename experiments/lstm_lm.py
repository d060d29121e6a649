"""LSTM language model (Zaremba et al., 2014): two layers with dropout between them, and a state that is carried along.

    lmrep train --config=experiments/lstm_lm.py:size=medium,data=files --workdir=runs/lstm \\
        --config.data.files='/data/text/*.txt' --config.data.documents=file

The paper's sizes, initial weights, dropout and sequences of 35 tokens, each of which continues one of the previous
batch. Batches have 32 sequences (20 in the paper), so that eight devices can split them. The optimizer is ours, Adam
at 1e-3 with warm-up and linear decay in place of SGD, as are subwords in place of words.

Expected: the paper has test perplexities per word of 82.7 (medium) and 78.4 (large) on the Penn Treebank; with subwords
and other text the figures differ.
Cost: in the paper, half a day (medium) and a full day (large) on a K20 GPU.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/lstm_lm.py:size=tiny --workdir=runs/lstm-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.01, layers=1, width=256 and
embedding=128.

Choices after the colon:

    size       medium large; tiny: one layer for two cores
    tied       no; yes: the output layer uses the token table (Press and Wolf, 2017)
    order      contiguous; shuffled: each sequence starts from an empty state
    format     stream (sequences split from one long text), packed, or any other
    optimizer  adam bert roberta lamb adafactor adamw, with the rate and warm-up above
    model, data, mesh, init: as in bert.py

The tokenizer is byte-level BPE with a vocabulary of 10,000; --config.tokenizer.name (`words` for corpora that are
distributed as words, such as WikiText) and --config.tokenizer.vocab_size change it. `lmrep predict` continues texts,
and `lmrep evaluate --stride=35` computes perplexities.
"""

from lmrep.experiment.pretraining import choices, finish, start

TOKENIZER_OF = "gpt2"


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, dict.fromkeys(("medium", "large"), TOKENIZER_OF), objective=("causal",), format="stream",
                     optimizer="adam", tied=("no", ("no", "yes")), order=("contiguous", ("contiguous", "shuffled")))
    chosen.preset = chosen.model or "lstm"
    config = start(chosen)
    config.name = f"{chosen.size}_lstm_lm"
    config.steps, config.batch_size, config.length = 50_000, 32, 35
    if chosen.format == "stream":
        config.format.order = chosen.order
    elif chosen.format == "stream_pair" and chosen.preset == "lstm":
        config.format.order = "shuffled"  # its examples overlap, and a state would know the next one
    if chosen.optimizer == "adam":
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.0,
                                 "clip": 1.0})
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 1_000 / 50_000})
    if chosen.preset == "lstm":
        config.tokenizer.vocab_size = 10_000
        config.model.update({"layers": 2, "tied": chosen.tied == "yes"})
        if chosen.size == "medium":
            config.model.update({"width": 650, "dropout": 0.5, "init_range": 0.05})
        elif chosen.size == "large":
            config.model.update({"width": 1500, "dropout": 0.65, "init_range": 0.04})
    config = finish(config, chosen)
    if chosen.size == "tiny":
        config.optimizer.learning_rate = 1e-2
    return config
