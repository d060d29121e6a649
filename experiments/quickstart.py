"""A small BERT: masked language modelling on the Python documentation that comes with the interpreter.

    lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart

Cost: about three minutes on two cores, without any download. Expected: a held-out masked accuracy of about 34 %, where
always predicting the most frequent word has 5 %. On your own text, where each file is a document (in a single file,
each paragraph):

    lmrep train --config=experiments/quickstart.py:data=files --workdir=runs/mine --config.data.files='texts/*.txt'

Choices after the colon:

    steps      how many (3200)
    model, objective, format, data, optimizer (with the rate of this file), mesh, init: as in bert.py
"""

from lmrep.experiment.pretraining import choices, finish, has_pair_label, start
from lmrep.models import MODELS


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, {"quickstart": "bert_tiny"}, objective="masked", format="packed", optimizer="adamw",
                     steps=3200)
    chosen.size = "quickstart"  # which is for two cores already
    config = start(chosen)
    config.name = "quickstart"
    config.steps, config.batch_size, config.length = chosen.steps, 32, 64
    config.data.validation = config.data.test = 0.05
    config.tokenizer.vocab_size = 2048
    # What lets a network this narrow learn within minutes: initial weights as wide as 1 / sqrt(d) (0.02 is for d = 768,
    # and keeps attention flat for a thousand steps here), layer norm before each block, a high rate, and no dropout,
    # since there are only a few epochs. With the exact gelu the network is one of Hugging Face's (RoBERTa with
    # pre-layer norm), so that lmrep convert can write it.
    if config.model.name == "transformer":
        config.model.update({"vocab": 0, "heads": 4, "norm": "pre", "activation": "gelu", "init_stddev": 0.08,
                             "dropout": 0.0, "attention_dropout": 0.0})
    else:
        config.model.update(MODELS[config.model.name].tiny)
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = has_pair_label(chosen.format)
    config.optimizer.update({"learning_rate": 4e-3, "betas": (0.9, 0.98), "eps": 1e-6})
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    if chosen.data == "python_docs" and chosen.objective in ("masked", "span_boundary"):
        config.samples = (
            "If the key is not [MASK], raise KeyError.",
            "Open the [MASK] and return a file object.",
            "Return True if the [MASK] is empty.",
            "Raises ValueError if the [MASK] is not found.",
        )
    config = finish(config, chosen)
    config.checkpoint.every = config.evaluation.every = 500
    return config
