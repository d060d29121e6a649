"""ALBERT (Lan et al., 2020): all layers share one copy of their parameters."""

from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import ACTIVATIONS, Family, Names, layers, linear, masked_head, probability, size
from lmrep.interop.huggingface.task_classes import encoder_classes
from lmrep.objectives.masked import RULES


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
    **layers("encoder.albert_layer_groups.0.albert_layers.0.", ("attention.query", "attention.key", "attention.value"),
             "attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    **linear("objective/pair/pooler", "pooler"),
}

FAMILY = Family(
    name="albert", preset_family="albert", prefix="albert",
    classes={(): "AlbertModel", ("masked",): "AlbertForMaskedLM", ("masked", "pair"): "AlbertForPreTraining"},
    base=BASE,
    heads={
        **masked_head("predictions.dense", "predictions.LayerNorm", "predictions.decoder.weight", "predictions.bias",
                      "predictions.decoder.bias"),
        **linear("objective/pair/classifier", "sop_classifier.classifier"),
    },
    tasks=encoder_classes("Albert", ("albert.pooler", "classifier"), ("albert.pooler", "classifier"),
                          keys=("classifier_dropout_prob",)),
    record=ConfigJson, fields=bert.FIELDS | {"embedding_size": "embedding"},
    architecture=bert.ARCHITECTURE | {"share": "all"}, initialization={"init": "truncated_normal"},
    always_projects=True, objective_fields=RULES["albert"], pairs="sop", optimizer="lamb")
