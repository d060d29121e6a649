"""RoBERTa with layer norm before each block (as Ott et al., 2019, fairseq, and Wettig et al., 2023): layer norm on the
embeddings, before each block, and after the last layer."""

from dataclasses import replace

from lmrep.interop.huggingface import bert, roberta
from lmrep.interop.huggingface.config_json import ConfigTable, size
from lmrep.interop.huggingface.tensors import norm

KEYS = bert.KEYS | {
    "vocab_size": size(50265, "vocab"),
}

# BERT's name of a norm -> the name here, since norms precede their blocks.
RENAMED = {"encoder.layer.{l}.attention.output.LayerNorm": "encoder.layer.{l}.attention.LayerNorm",
           "encoder.layer.{l}.output.LayerNorm": "encoder.layer.{l}.intermediate.LayerNorm"}
CONFIG = ConfigTable(KEYS, bert.FIXED | {"norm": "pre"}, roberta.CONFIG.initial)

TENSORS = {
    **bert.EMBEDDINGS,
    **{RENAMED.get(name, name): module for name, module in bert.LAYERS.items()},
    "LayerNorm": norm("encoder/final_norm"),
    **roberta.HEAD_TENSORS,
}

FAMILY = replace(
    roberta.FAMILY, name="roberta-prelayernorm", prefix="roberta_prelayernorm", config_from=CONFIG.read,
    config_to=CONFIG.write, tensors=TENSORS, heads=roberta.classes("RobertaPreLayerNorm", "roberta_prelayernorm"))
DECODER = bert.decoder(FAMILY, "RobertaPreLayerNormForCausalLM", bert.GELU)
