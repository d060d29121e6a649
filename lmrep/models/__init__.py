"""Networks: one file per architecture, looked up by name in `MODELS`, and the table of published sizes."""

from lmrep.models import bilstm, lstm, none, transformer, transformer_xl
from lmrep.models.base import Encoded, Inputs, Model, ModelDef, model_inputs
from lmrep.models.presets import PRESETS

__all__ = ["MODELS", "PRESETS", "Encoded", "Inputs", "Model", "ModelDef", "model_inputs", "pretrained_models"]

MODELS: dict[str, ModelDef] = {
    "transformer": transformer.DEFINITION,
    "transformer_xl": transformer_xl.DEFINITION,
    "lstm": lstm.DEFINITION,
    "bilstm": bilstm.DEFINITION,
    "none": none.DEFINITION,
}


def pretrained_models() -> tuple[str, ...]:
    """The names of `MODELS` that can be pretrained."""
    return tuple(name for name, definition in MODELS.items() if not definition.tasks_only)
