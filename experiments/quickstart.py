"""A small BERT, masked language modelling, on the Python documentation that comes with the interpreter.

    lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart

Needs two cores, no download and under five minutes.
"""

from lmrep.config.loading import parts
from lmrep.experiment import base


def get_config(argument=""):
    """The config; `argument` chooses parts: `steps=`, `mesh=`."""
    chosen = parts(argument, steps=1000, mesh="data")
    config = base("bert_tiny", layout=chosen.mesh)
    config.name = "quickstart"
    config.steps = chosen.steps
    config.length = 64
    config.batch_size = 64
    config.model.update({"vocab": 0, "layers": 2, "width": 128, "heads": 2, "mlp": 512,
                         "dropout": 0.0, "attention_dropout": 0.0})
    config.tokenizer.vocab_size = 4096
    config.data.update({"validation": 0.05, "test": 0.05})
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule.warmup_share = 0.1
    config.optimizer.schedule.decay_from = "warmup"
    config.checkpoint.every = 250
    config.evaluation.every = 250
    config.samples = (
        "The [MASK] of a list is an integer.",
        "Return a new string with all [MASK] removed.",
        "If the key is not [MASK], raise KeyError.",
    )
    return config
