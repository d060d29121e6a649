"""ModernBERT (Warner et al., 2024): rotary positions, gated blocks without biases, local and global layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ConfigTable, activation, key, only, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass
from lmrep.interop.huggingface.tensors import linear, norm
from lmrep.models.transformer import Config
from lmrep.tasks.heads import Head

KEYS = {
    "vocab_size": size(50368, "vocab"),
    "hidden_size": size(768, "width"),
    "num_hidden_layers": size(22, "layers"),
    "num_attention_heads": size(12, "heads"),
    "intermediate_size": size(1152, "mlp"),
    "max_position_embeddings": size(8192, "max_length"),
    "hidden_activation": activation("gelu"),
    "norm_eps": key(1e-5, "norm_eps", above=0),
    "initializer_range": key(0.02, "init_stddev", above=0),
    "embedding_dropout": rate(0.0),  # our network has one dropout for embeddings and blocks
    "attention_dropout": rate(0.0, "attention_dropout"),
    "mlp_dropout": rate(0.0, "mlp_dropout"),
    "global_attn_every_n_layers": size(3, "global_every"),
    "global_rope_theta": key(160_000.0, "rotary_base", above=0),
    "local_rope_theta": key(10_000.0, "local_base", above=0),
    "local_attention": size(128, at_least=2),  # positions of both sides
    "attention_bias": only(False),
    "mlp_bias": only(False),
    "norm_bias": only(False),
    "decoder_bias": only(True),
    "classifier_bias": only(False),
    "classifier_activation": only("gelu"),
}
FIXED = {"positions": "rotary", "rotary_fraction": 1.0, "norm": "pre", "norm_kind": "layer_without_bias",
         "first_norm": False, "bias": False, "gated": True, "share": "none", "embedding_norm": True, "token_types": 0,
         "scaled_attention": True, "attention_by_layer": False, "query_key_norm": False,
         "layer_weights": "none", "attention_cap": 0.0, "logit_cap": 0.0, "mask_decoder": 0}
CONFIG = ConfigTable(KEYS, FIXED, {"init": "truncated_normal", "residual_init": "scaled", "dropout": 0.0})
LAYER_TYPES = {"full_attention": "global", "sliding_attention": "local"}  # newer name of a kind of layer -> older


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Config:
    """Converts a config.json, with the keys of the published files or those of newer versions of the library, as
    `Family.config_from`."""
    values = CONFIG.values({**config_json, **_older(config_json, path)}, path)
    return CONFIG.config(values, path, window=values.local_attention // 2)


def _older(config_json: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns the older keys with the meaning of `rope_parameters` and `layer_types`."""
    older = {}
    for name, parameters in (config_json.get("rope_parameters") or {}).items():
        if name not in LAYER_TYPES or parameters.get("rope_type", "default") != "default":
            raise UserError(f"{path} has rope_parameters of {name!r} of type {parameters.get('rope_type')!r}; expected "
                            f"the type default for {' and '.join(LAYER_TYPES)}")
        if "rope_theta" in parameters:
            older[f"{LAYER_TYPES[name]}_rope_theta"] = parameters["rope_theta"]
    if types := config_json.get("layer_types"):
        locals_ = [kind == "sliding_attention" for kind in types]
        every = next((i for i in range(1, len(types)) if not locals_[i]), len(types))
        if locals_ != [bool(i % every) for i in range(len(types))]:
            raise UserError(f"{path} has layer_types that do not repeat with a global layer first")
        older["global_attn_every_n_layers"] = every
    return older


def config_to(config: Config) -> dict[str, Any]:
    """Converts our config to the keys of the published files, as `Family.config_to`."""
    config = replace(config, local_base=config.local_base or config.rotary_base)
    return CONFIG.write(config, [] if config.window else ["window"]) | {"local_attention": 2 * config.window}


GELU = {"hidden_activation": "gelu"}  # of heads, by `HeadClass.always`
LAYER = "encoder/layers/{l}"
TENSORS = {
    "embeddings.tok_embeddings.weight": "encoder/embedding/token",
    "embeddings.norm": norm("encoder/embedding_norm", bias=False),
    "layers.{l}.attn_norm": norm(f"{LAYER}/attention_norm", bias=False),
    "layers.{l}.attn.Wqkv": linear(*(f"{LAYER}/attention/{name}" for name in ("query", "key", "value")), bias=False),
    "layers.{l}.attn.Wo": linear(f"{LAYER}/attention/output", bias=False),
    "layers.{l}.mlp_norm": norm(f"{LAYER}/mlp_norm", bias=False),
    "layers.{l}.mlp.Wi": linear(f"{LAYER}/mlp/gate", f"{LAYER}/mlp/up", bias=False),
    "layers.{l}.mlp.Wo": linear(f"{LAYER}/mlp/out", bias=False),
    "final_norm": norm("encoder/final_norm", bias=False),
    "head.dense": linear("objective/masked/transform", bias=False),
    "head.norm": norm("objective/masked/norm", bias=False),
    "decoder.bias": "objective/masked/bias",
    "decoder.weight": "objective/masked/output",
}

POOLING, RATE = "classifier_pooling", "classifier_dropout"
HEAD = {
    "head.dense": linear("dense", bias=False),
    "head.norm": norm("norm", bias=False),
    "classifier": linear("out"),
}


def task_class(name: str, *tasks: str, pooling: str = "", dropout_keys: tuple[str, ...] = (RATE,)) -> HeadClass:
    """Makes a class for tasks. All have the same head."""
    return HeadClass(
        f"ModernBertFor{name}", tasks, tensors=HEAD, form=Head(activation="gelu", norm=True, dropout=0.0),
        pooling=pooling, dropout_keys=dropout_keys)


FAMILY = Family(
    name="modernbert", prefix="model", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(HeadClass("ModernBertModel"), HeadClass("ModernBertForMaskedLM", ("masked",), always=GELU),
           task_class("SequenceClassification", *SEQUENCE, pooling=POOLING),
           task_class("TokenClassification", "tagging"),
           task_class("QuestionAnswering", "span_extraction", dropout_keys=()),
           task_class("MultipleChoice", "multiple_choice", pooling=POOLING)),
    specials=Specials(pad=50283, writes_cls=True), pretraining=Pretraining(
        fields={"rate": 0.3}, optimizer="stable_adamw", preset="modernbert"))
