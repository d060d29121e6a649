"""Networks: one file per architecture, looked up by name in `MODELS`, and the table of published sizes."""

from lmrep.models import lstm, transformer
from lmrep.models.base import Encoded, Inputs, Model, ModelDef, model_inputs
from lmrep.models.presets import PRESETS

__all__ = ["MODELS", "PRESETS", "Encoded", "Inputs", "Model", "ModelDef", "model_inputs"]

MODELS: dict[str, ModelDef] = {
    "transformer": transformer.DEFINITION,
    "lstm": lstm.DEFINITION,
}
