"""Recurrent language model with plain tanh cells (Mikolov et al., 2010): the LSTM's ablation without gates.

    lmrep train --config=experiments/rnn_lm.py:size=small,data=files --workdir=runs/rnn \\
        --config.data.files='/data/text/*.txt' --config.data.documents=file

One layer, with a state that is carried from batch to batch. Batches and optimizer are as in `lstm_lm.py`, not the
paper's, and subwords take the place of words.

Expected: Mikolov et al. (2011) have a test perplexity per word of 124.7 on the Penn Treebank with a state of width 200;
with subwords and other text the figures differ.
Cost: a step takes about a third of the LSTM's time at the same width.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/rnn_lm.py:size=tiny --workdir=runs/rnn-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, width=256 and embedding=128.

Choices after the colon:

    size       small (width 200) medium (width 650); tiny: for two cores
    tied       no; yes: the output layer uses the token table (Press and Wolf, 2017)
    order      contiguous; shuffled: each sequence starts from an empty state
    format     stream (sequences split from one long text), packed, or any other
    optimizer  adam bert roberta lamb adafactor adamw, with the rate and warm-up above
    model, data, mesh, init: as in bert.py
"""

from lmrep.experiment.pretraining import choices, finish, start

TOKENIZER_OF = "gpt2"


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, dict.fromkeys(("small", "medium"), TOKENIZER_OF), objective=("causal",), format="stream",
                     optimizer="adam", tied=("no", ("no", "yes")), order=("contiguous", ("contiguous", "shuffled")))
    chosen.preset = chosen.model or "lstm"
    config = start(chosen)
    config.name = f"{chosen.size}_rnn_lm"
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
        config.model.width = 650 if chosen.size == "medium" else 200
    config = finish(config, chosen)
    if chosen.preset == "lstm":
        config.model.update({"cell": "rnn", "layers": 1, "dropout": 0.0, "tied": chosen.tied == "yes"})
    return config
