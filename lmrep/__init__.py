"""lmrep: pretraining contextual language representations in JAX.

`lmrep.train(config, workdir)`, `lmrep.evaluate(workdir)` and `lmrep.load(workdir)` do what the commands do.
"""

import importlib

__version__ = "0.1.0"

FACE = ("train", "evaluate", "load")


def __getattr__(name: str):
    # Found when asked for: `lmrep --help` should not wait for JAX.
    if name in FACE:
        return getattr(importlib.import_module("lmrep.api"), name)
    raise AttributeError(f"module 'lmrep' has no attribute {name!r}")
