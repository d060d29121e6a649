"""lmrep: pretraining contextual language representations in JAX.

    import lmrep
    lmrep.train("experiments/quickstart.py", "runs/mine", steps=500)    # or an ml_collections.ConfigDict
    lmrep.evaluate("runs/mine", split="test")
    lmrep.load("runs/mine").fill_masks(["The [MASK] of a list is an integer."])

Functions do what the commands of the same names do; `load` and `save` read and write a run. See `help(lmrep.train)`.
Wrong input raises `UserError`, and what stops a run raises `RunFault`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmrep.analysis.publish import push
    from lmrep.api import convert, embed, evaluate, inspect, load, report, save, train
    from lmrep.core.errors import RunFault, UserError
    from lmrep.sweeps.sweep import sweep

__version__ = "0.2.0"
_MODULES = {"RunFault": "lmrep.core.errors", "UserError": "lmrep.core.errors", "push": "lmrep.analysis.publish",
            "sweep": "lmrep.sweeps.sweep"}
__all__ = ["RunFault", "UserError", "convert", "embed", "evaluate", "inspect", "load", "push", "report", "save",
           "sweep", "train"]


def __getattr__(name: str):
    # Imported on first use, so that `lmrep --help` does not wait for JAX.
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "lmrep.api")), name)
    raise AttributeError(f"module 'lmrep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
