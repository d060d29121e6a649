"""ALBERT (Lan et al., 2020): all layers share one copy of their parameters."""

from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import (
    ACTIVATIONS,
    KEY,
    QUERY,
    VALUE,
    Family,
    Names,
    linear,
    masked_head,
    norm,
    probability,
    size,
)
from lmrep.objectives.masked import RULES

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"


@dataclass(frozen=True)
class ConfigJson(bert.ConfigJson):
    """ALBERT's keys."""

    vocab_size: int = size(30000, "rows of the token table")
    embedding_size: int = size(128, "width of the tables")
    hidden_size: int = size(4096, "d")
    num_attention_heads: int = size(64, "h")
    intermediate_size: int = size(16384, "f")
    hidden_act: str = setting("gelu_new", "activation", choices=tuple(ACTIVATIONS))
    hidden_dropout_prob: float = probability(0.0, "dropout")
    attention_probs_dropout_prob: float = probability(0.0, "dropout on attention probabilities")
    num_hidden_groups: int = setting(1, "groups of layers with different parameters", choices=(1,))
    inner_group_num: int = setting(1, "layers in a group", choices=(1,))


BASE: Names = {
    **bert.EMBEDDINGS,
    **linear("encoder/project", "encoder.embedding_hidden_mapping_in"),
    **linear(QUERY, f"{LAYER}.attention.query"),
    **linear(KEY, f"{LAYER}.attention.key"),
    **linear(VALUE, f"{LAYER}.attention.value"),
    **linear("encoder/layers/attention/output", f"{LAYER}.attention.dense"),
    **norm("encoder/layers/attention_norm", f"{LAYER}.attention.LayerNorm"),
    **linear("encoder/layers/mlp/in", f"{LAYER}.ffn"),
    **linear("encoder/layers/mlp/out", f"{LAYER}.ffn_output"),
    **norm("encoder/layers/mlp_norm", f"{LAYER}.full_layer_layer_norm"),
    **linear("objective/pair/pooler", "pooler"),
}

FAMILY = Family(
    name="albert", prefix="albert", tied="predictions.decoder.weight",
    classes={(): "AlbertModel", ("masked",): "AlbertForMaskedLM", ("masked", "pair"): "AlbertForPreTraining"},
    base=BASE,
    heads={
        **masked_head("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder.bias"),
        **linear("objective/pair/classifier", "sop_classifier.classifier"),
    },
    record=ConfigJson, fields=bert.FIELDS | {"embedding_size": "embedding"},
    architecture=bert.ARCHITECTURE | {"share": "all"}, initialization={"init": "truncated_normal"},
    always_projects=True, masking=RULES["albert"], pairs="sop", optimizer="lamb")
