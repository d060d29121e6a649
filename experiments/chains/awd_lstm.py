"""AWD-LSTM (Merity et al., 2018), both trainings in one command: NT-ASGD, then ASGD from the best checkpoint.

    lmrep train --config=experiments/chains/awd_lstm.py:size=wt2,data=files --workdir=runs/awd \\
        --config.first.data.files=/data/wikitext-2/wiki.train.tokens --config.first.data.documents=line \\
        --config.second.data.files=/data/wikitext-2/wiki.train.tokens --config.second.data.documents=line
    lmrep evaluate --workdir=runs/awd/second --split=test

The runs are runs/awd/first and runs/awd/second, of experiments/awd_lstm.py; the choices after the colon are those of
that file but for `training` and `init`. --config.NAME.FIELD sets a field of one run. The same command continues where
it was stopped.

Cost and Expected: those of awd_lstm.py. `size=tiny` takes minutes on two cores.
"""


def get_chain(argument=""):
    """The runs, in order."""
    choices = f"{argument}," if argument else ""
    return {"first": f"awd_lstm.py:{argument}", "second": f"awd_lstm.py:{choices}training=second,init={{first}}"}
