"""lmrep: pretraining contextual language representations in JAX.

    import lmrep
    lmrep.train("experiments/quickstart.py", "runs/mine", steps=500)    # or an ml_collections.ConfigDict
    lmrep.evaluate("runs/mine", split="test")
    lmrep.load("runs/mine").fill_masks(["The [MASK] of a list is an integer."])

`train`, `evaluate` and `load` do what the commands of the same names do; `help(lmrep.train)` describes the first.
Wrong input raises `UserError`, and what stops a run raises `RunFault`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmrep.api import evaluate, load, train
    from lmrep.core.errors import RunFault, UserError

__version__ = "0.1.0"
_MODULES = {"evaluate": "lmrep.api", "load": "lmrep.api", "train": "lmrep.api", "RunFault": "lmrep.core.errors",
            "UserError": "lmrep.core.errors"}
__all__ = ["RunFault", "UserError", "evaluate", "load", "train"]


def __getattr__(name: str):
    # Imported on first use, so that `lmrep --help` does not wait for JAX.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lmrep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
