"""GPT-2 (Radford et al., 2019): GPT with layer norm before each block and after the last layer."""

from dataclasses import replace

from lmrep.interop.huggingface import gpt
from lmrep.interop.huggingface.config_json import ConfigTable, activation, key, only, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import norm

KEYS = gpt.DECODER_KEYS | {
    "n_inner": size(None, "mlp"),
    "activation_function": activation("gelu_new"),
    "scale_attn_weights": key(True, "scaled_attention"),
    "scale_attn_by_inverse_layer_idx": key(False, "attention_by_layer"),
    "add_cross_attention": only(False),
}

CONFIG = ConfigTable(KEYS, gpt.FIXED | {"norm": "pre"},
                     {"init": "normal", "position_stddev": 0.01, "residual_init": "scaled"})


TENSORS = {"wte.weight": "encoder/embedding/token", "wpe.weight": "encoder/embedding/position", **gpt.LAYERS,
           "ln_f": norm("encoder/final_norm"), "lm_head.weight": "objective/causal/output"}


FAMILY = replace(
    gpt.FAMILY, name="gpt2", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(HeadClass("GPT2LMHeadModel", ("causal",)), HeadClass("GPT2Model"),
           HeadClass("GPT2DoubleHeadsModel", ("causal",)),  # read without its other head
           task_class("GPT2ForSequenceClassification", SEQUENCE, "score", form=replace(gpt.HEAD, bias=False)),
           task_class("GPT2ForTokenClassification", ["tagging"], "classifier", dropout_keys=["classifier_dropout"],
                      form=replace(gpt.HEAD, dropout=0.1)),
           task_class("GPT2ForQuestionAnswering", ["span_extraction"], "qa_outputs", form=gpt.HEAD)),
    pretraining=gpt.FAMILY.pretraining._replace(preset="gpt2"))
