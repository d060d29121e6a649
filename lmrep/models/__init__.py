"""Networks: one file per architecture, looked up by name in `MODELS`, and the table of published sizes."""

from typing import Any

from lmrep.core.components import component_table
from lmrep.models import awd_lstm, bilstm, encoder_decoder, lstm, none, seq2seq_lstm, transformer, transformer_xl
from lmrep.models.base import Encoded, Inputs, Model, ModelDef, model_inputs
from lmrep.models.presets import PRESETS

__all__ = ["MODELS", "PRESETS", "Encoded", "Inputs", "Model", "ModelDef", "build", "model_inputs", "name_of",
           "pretrained_models"]

MODELS: dict[str, ModelDef] = component_table(ModelDef, {
    "transformer": transformer.DEFINITION,
    "transformer_xl": transformer_xl.DEFINITION,
    "encoder_decoder": encoder_decoder.DEFINITION,
    "lstm": lstm.DEFINITION,
    "awd_lstm": awd_lstm.DEFINITION,
    "bilstm": bilstm.DEFINITION,
    "seq2seq_lstm": seq2seq_lstm.DEFINITION,
    "none": none.DEFINITION,
})


def name_of(config: Any) -> str:
    """Returns the name in `MODELS` of the network that a record configures."""
    return next(name for name, definition in MODELS.items() if definition.config is type(config))


def build(config: Any) -> Model:
    """Builds the network that a record configures. Raises UserError where its fields do not fit each other."""
    return MODELS[name_of(config)].build(config)


def pretrained_models() -> tuple[str, ...]:
    """Returns the names of `MODELS` that can be pretrained: all but `none`, which has no parameters to learn."""
    return tuple(name for name, definition in MODELS.items() if definition is not none.DEFINITION)
