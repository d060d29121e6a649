"""ALBERT (Lan et al., 2020): all layers share one copy of their parameters."""

from collections.abc import Mapping
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Pretraining
from lmrep.interop.huggingface.config_json import ConfigTable, activation, only, rate, size
from lmrep.interop.huggingface.head_classes import HeadClass, encoder_classes
from lmrep.interop.huggingface.tensors import Tensor, linear, norm

KEYS = bert.KEYS | {
    "vocab_size": size(30000, "vocab"),
    "embedding_size": size(128, "embedding"),
    "hidden_size": size(4096, "width"),
    "num_attention_heads": size(64, "heads"),
    "intermediate_size": size(16384, "mlp"),
    "hidden_act": activation("gelu_new"),
    "hidden_dropout_prob": rate(0.0, "dropout"),
    "attention_probs_dropout_prob": rate(0.0, "attention_dropout"),
    "num_hidden_groups": only(1),
    "inner_group_num": only(1),
    "is_decoder": only(False),
}

CONFIG = ConfigTable(KEYS, bert.FIXED | {"share": "all"}, bert.CONFIG.initial)


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Any:
    """Converts config.json to our config, as `Family.config_from`. Refuses embeddings as wide as the network, which
    ALBERT still projects, but our network does not."""
    config = CONFIG.read(config_json, path)
    if not config.embedding:
        raise UserError(f"{path} has embedding_size {config.width}, which is its hidden_size; albert still projects "
                        "its embeddings then, and our network does not")
    return config


def config_to(config: Any) -> Mapping[str, Any]:
    """Converts our config to the keys of config.json, as `Family.config_to`."""
    return CONFIG.write(config, ["embedding"] if config.table_width == config.width else [])


LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
TENSORS = {
    **bert.EMBEDDINGS,
    "encoder.embedding_hidden_mapping_in": linear("encoder/project"),
    f"{LAYER}.attention.query": linear("encoder/layers/attention/query"),
    f"{LAYER}.attention.key": linear("encoder/layers/attention/key"),
    f"{LAYER}.attention.value": linear("encoder/layers/attention/value"),
    f"{LAYER}.attention.dense": linear("encoder/layers/attention/output"),
    f"{LAYER}.attention.LayerNorm": norm("encoder/layers/attention_norm"),
    f"{LAYER}.ffn": linear("encoder/layers/mlp/in"),
    f"{LAYER}.ffn_output": linear("encoder/layers/mlp/out"),
    f"{LAYER}.full_layer_layer_norm": norm("encoder/layers/mlp_norm"),
    "pooler": linear("objective/pair/pooler"),
    "predictions.dense": linear("objective/masked/transform"),
    "predictions.LayerNorm": norm("objective/masked/norm"),
    "predictions.bias": Tensor(("objective/masked/bias",), also=("predictions.decoder.bias",)),
    "predictions.decoder.weight": "objective/masked/output",
    "sop_classifier.classifier": linear("objective/pair/classifier"),
}

FAMILY = Family(
    name="albert", prefix="albert", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(HeadClass("AlbertModel"), HeadClass("AlbertForMaskedLM", ("masked",)),
           HeadClass("AlbertForPreTraining", ("masked", "pair")),
           *encoder_classes("Albert", ("albert.pooler", "classifier"), ("albert.pooler", "classifier"),
                            keys=("classifier_dropout_prob",))),
    pretraining=Pretraining(fields={"ngram": 3}, pairs="sop", optimizer="lamb", preset="albert"))
