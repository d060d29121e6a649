"""GPT-2 (Radford et al., 2019): GPT with layer norm before each block and after the last layer."""

import dataclasses
from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.interop.huggingface import gpt
from lmrep.interop.huggingface.base import ACTIVATIONS, norm, size
from lmrep.interop.huggingface.task_classes import SEQUENCE, decoder_classes


@dataclass(frozen=True)
class ConfigJson(gpt.DecoderJson):
    """GPT-2's keys."""

    n_inner: int | None = size(None, "f; 4 d where it is null")
    activation_function: str = setting("gelu_new", "activation", choices=tuple(ACTIVATIONS))
    scale_attn_weights: bool = setting(True, "whether attention logits are divided by the root of a head's width")
    scale_attn_by_inverse_layer_idx: bool = setting(False, "whether they are divided by the number of the layer")
    add_cross_attention: bool = setting(False, "whether it attends to a second input", choices=(False,))


FAMILY = dataclasses.replace(
    gpt.FAMILY, name="gpt2", classes={("causal",): "GPT2LMHeadModel", (): "GPT2Model"},
    tasks=decoder_classes("GPT2", (*SEQUENCE, "tagging", "span_extraction")), preset_family="gpt2",
    read_as={"GPT2DoubleHeadsModel": "GPT2LMHeadModel"},
    base={**gpt.base("wte.weight", "wpe.weight"), **norm("encoder/final_norm", "ln_f")},
    record=ConfigJson, fields=gpt.FIELDS | {
        "n_inner": "mlp", "scale_attn_weights": "scaled_attention",
        "scale_attn_by_inverse_layer_idx": "attention_by_layer"},
    architecture=gpt.ARCHITECTURE | {"norm": "pre", "scaled_attention": (True, False),
                                     "attention_by_layer": (True, False)},
    initialization={"init": "normal", "position_stddev": 0.01, "residual_init": "scaled"},
    activation_key="activation_function", activations=ACTIVATIONS)
