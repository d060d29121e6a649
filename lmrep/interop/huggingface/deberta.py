"""DeBERTa from version 2 on (He et al., 2021 and 2023): attention to relative positions in buckets apart from content.

Files have one of two masked-LM heads, which compute the same under other names: that of the library's classes
(`cls.predictions`), which is written, or the one of the published code (`lm_predictions`, with `legacy` false). The
published files were trained with absolute positions in the last layers of the decoder of masks, which neither the
library nor lmrep has.
"""

from collections.abc import Mapping
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import MAX_SIZE, ConfigTable, activation, key, only, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import Tensor, linear, norm
from lmrep.models.transformer import Config
from lmrep.tasks.heads import Head

# The values of all published files, which are not the defaults of the library.
REQUIRED = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm",
            "position_biased_input": False}
KEYS = bert.KEYS | {
    "vocab_size": size(128100, "vocab"),
    "hidden_size": size(1536, "width"),
    "num_hidden_layers": size(24, "layers"),
    "num_attention_heads": size(24, "heads"),
    "intermediate_size": size(6144, "mlp"),
    "type_vocab_size": only(0),
    "hidden_act": activation("gelu"),
    "layer_norm_eps": key(1e-7, "norm_eps", above=0),
    "is_decoder": only(False),
    "relative_attention": key(False),
    "share_att_key": key(False),
    "norm_rel_ebd": key("none"),
    "position_biased_input": key(True),
    "position_buckets": key(-1, at_least=-1, at_most=MAX_SIZE),  # -1: one for each distance
    "max_relative_positions": key(-1, at_least=-1, at_most=MAX_SIZE),  # -1: max_position_embeddings
    "pos_att_type": key("", "position_terms", values={"c2p|p2c": "both", "c2p": "c2p", "p2c": "p2c"}),
    "conv_kernel_size": key(0, "convolution", at_least=0, at_most=MAX_SIZE),
    "conv_act": key("tanh"),
    "conv_groups": only(1),
    "embedding_size": size(None),
    "attention_head_size": size(None),
}
FIXED = {name: value for name, value in bert.FIXED.items() if name != "convolution"} | {
    "positions": "disentangled", "token_types": 0}
CONFIG = ConfigTable(KEYS, FIXED, {"init": "normal"})


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Config:
    """Converts config.json to our config, as `Family.config_from`."""
    config_json = config_json or REQUIRED | {"pos_att_type": "p2c|c2p"}  # {} asks for the family's default network
    terms = config_json.get("pos_att_type") or ()  # text, or a list
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    keys = CONFIG.values({**config_json, "pos_att_type": "|".join(sorted(str(term).strip() for term in terms))}, path)
    sizes = {"embedding_size": keys.hidden_size, "attention_head_size": keys.hidden_size // keys.num_attention_heads}
    expected = REQUIRED | {name: size for name, size in sizes.items() if getattr(keys, name) is not None} | (
        {"conv_act": keys.hidden_act} if keys.conv_kernel_size else {})
    if wrong := [name for name, value in expected.items() if getattr(keys, name) != value]:
        raise UserError(f"{path} has " + ", ".join(f"{name} {getattr(keys, name)}" for name in wrong) + "; our network "
                        "has " + ", ".join(f"{name} {expected[name]}" for name in wrong) + " alone, as published files")
    distance = keys.max_relative_positions if keys.max_relative_positions > 0 else keys.max_position_embeddings
    return CONFIG.config(keys, path, position_buckets=max(0, keys.position_buckets), max_distance=distance)


def config_to(config: Config) -> dict[str, Any]:
    """Converts our config to the keys of config.json, as `Family.config_to`."""
    keys = CONFIG.write(config)
    convolution = {"conv_act": keys["hidden_act"]} if config.convolution else {}
    return keys | REQUIRED | convolution | {
        "position_buckets": config.position_buckets or -1, "max_relative_positions": config.max_distance}


TRANSFORM = {"dense": linear("objective/masked/transform"), "LayerNorm": norm("objective/masked/norm")}
TENSORS = {
    "embeddings.word_embeddings.weight": "encoder/embedding/token",
    "embeddings.LayerNorm": norm("encoder/embedding_norm"),
    **{name.replace("self.query", "self.query_proj").replace("self.key", "self.key_proj").replace(
        "self.value", "self.value_proj"): module for name, module in bert.LAYERS.items()},
    "encoder.rel_embeddings.weight": "encoder/relative/table",
    "encoder.LayerNorm": norm("encoder/relative/norm"),
    "encoder.conv.conv.weight": Tensor(("encoder/convolution/kernel",), transposed=True),
    "encoder.conv.conv.bias": "encoder/convolution/bias",
    "encoder.conv.LayerNorm": norm("encoder/convolution_norm"),
    **{f"cls.predictions.transform.{name}{suffix}": tensor._replace(also=(f"lm_predictions.lm_head.{name}{suffix}",))
       for name, module in TRANSFORM.items() for suffix, tensor in module.items()},
    "cls.predictions.bias": Tensor(("objective/masked/bias",), also=(
        "cls.predictions.decoder.bias", "lm_predictions.lm_head.bias")),
    "cls.predictions.decoder.weight": "objective/masked/output",
}

SEQUENCE_HEAD = {"dropout_keys": ["cls_dropout", "hidden_dropout_prob"], "form": Head(activation="gelu"),
                 "requires": {"pooler_hidden_act": "gelu", "pooler_dropout": 0}}
FAMILY = Family(
    name="deberta-v2", prefix="deberta", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(
        HeadClass("DebertaV2Model"), HeadClass("DebertaV2ForMaskedLM", ("masked",)),
        task_class("DebertaV2ForSequenceClassification", SEQUENCE, "pooler.dense", "classifier", **SEQUENCE_HEAD),
        task_class("DebertaV2ForTokenClassification", ["tagging"], "classifier", dropout_keys=["hidden_dropout_prob"]),
        task_class("DebertaV2ForQuestionAnswering", ["span_extraction"], "qa_outputs", form=Head(dropout=0.0)),
        task_class("DebertaV2ForMultipleChoice", ["multiple_choice"], "pooler.dense", "classifier", **SEQUENCE_HEAD)),
    specials=Specials(writes_ends=False), pretraining=Pretraining(preset="deberta"))
