"""Recurrent language model with plain tanh cells (Mikolov et al., 2010): the LSTM's ablation without gates.

    lmrep train --config=experiments/rnn_lm.py:size=small,data=files --workdir=runs/rnn \\
        --config.data.files='/data/text/*.txt' --config.data.documents=file

One layer, with a state that is carried from batch to batch. Batches and optimizer are those of `lstm_lm.py`, not the
paper's, and subwords take the place of words.

Expected: Mikolov et al. (2011) have a test perplexity per word of 124.7 on the Penn Treebank with a state of width 200;
with subwords and other text the figures differ.
Cost: a step takes about a third of the LSTM's time at the same width.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/rnn_lm.py:size=tiny --workdir=runs/rnn-tiny

Choices after the colon:

    size       small (width 200) medium (width 650); tiny: for two cores
    tied       no; yes: the output layer uses the token table (Press and Wolf, 2017)
    order      contiguous; shuffled: each sequence starts from an empty state
    format     stream (sequences split from one long text), packed, or any other
    optimizer  adam bert roberta lamb adafactor adamw, with the rate and warm-up above
    model, data, mesh, init: as in bert.py
"""

from lmrep.experiment.compose import compose_recurrent

SIZES = {"small": {"width": 200}, "medium": {"width": 650}}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    return compose_recurrent(argument, SIZES, "rnn_lm", cell="rnn", layers=1, dropout=0.0)
