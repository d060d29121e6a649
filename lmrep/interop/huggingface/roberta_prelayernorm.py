"""RoBERTa with layer norm before each block (as Ott et al., 2019, fairseq, and Wettig et al., 2023): layer norm on the
embeddings, before each block, and after the last layer."""

import dataclasses

from lmrep.interop.huggingface import bert, roberta
from lmrep.interop.huggingface.base import Names, linear, norm, size


@dataclasses.dataclass(frozen=True)
class ConfigJson(bert.ConfigJson):
    """Its keys."""

    vocab_size: int = size(50265, "rows of the token table")


BASE: Names = {
    **bert.EMBEDDINGS, **bert.layers("attention.LayerNorm", "intermediate.LayerNorm"),
    **norm("encoder/final_norm", "LayerNorm"), **linear("objective/pair/pooler", "pooler.dense"),
}

FAMILY = dataclasses.replace(
    roberta.FAMILY, name="roberta-prelayernorm", prefix="roberta_prelayernorm", base=BASE, record=ConfigJson,
    classes={(): "RobertaPreLayerNormModel", ("masked",): "RobertaPreLayerNormForMaskedLM"},
    tasks=roberta.task_classes("RobertaPreLayerNorm", "roberta_prelayernorm"),
    architecture=bert.ARCHITECTURE | {"norm": "pre"})

DECODER = bert.decoder(FAMILY, "RobertaPreLayerNormForCausalLM")
