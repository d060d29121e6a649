"""A small BERT, masked language modelling, on the Python documentation that comes with the interpreter.

    lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart

Needs two cores, no download and about three minutes. On your own text, one document a file (a single file: documents
between blank lines):

    lmrep train --config=experiments/quickstart.py:data=files --workdir=runs/mine --config.data.files='texts/*.txt'
"""

from lmrep.config.loading import parts
from lmrep.experiment.config import default_config
from lmrep.interop.init_from import adopt_checkpoint


def get_config(argument=""):
    """The config; `argument` chooses parts: `steps=`, `data=`, `mesh=`, `init=`."""
    chosen = parts(argument, steps=3200, data=("python_docs", ("python_docs", "files")), mesh="data",
                   init="")
    config = default_config("bert_tiny", optimizer="adamw", layout=chosen.mesh)
    config.name = "quickstart"
    config.steps, config.batch_size, config.length = chosen.steps, 32, 64
    config.data.corpus = {"python_docs": "python_docs", "files": "text_files"}[chosen.data]
    config.data.validation = config.data.test = 0.05
    config.tokenizer.vocab_size = 2048
    # BERT-tiny, with what lets a network this narrow learn within minutes: initial weights as wide as 1 / sqrt(d)
    # (0.02 is for d = 768, and keeps attention flat for a thousand steps here), layer norm before each block, a rate
    # of 4e-3, and no dropout, since a few passes over the text are all there is.
    config.model.update({"vocab": 0, "heads": 4, "norm": "pre", "init_stddev": 0.08, "dropout": 0.0,
                         "attention_dropout": 0.0})
    config.optimizer.update({"learning_rate": 4e-3, "betas": (0.9, 0.98), "eps": 1e-6})
    config.optimizer.schedule.warmup_fraction = 0.1
    config.checkpoint.every = config.evaluation.every = 500
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    config.samples = (
        "If the key is not [MASK], raise KeyError.",
        "Open the [MASK] and return a file object.",
        "Return True if the [MASK] is empty.",
        "Raises ValueError if the [MASK] is not found.",
    )
    return config
