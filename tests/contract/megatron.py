"""A family of published checkpoints that lmrep does not know, in one file: BERT with layer norm before each block, and
heads that are not its own."""

from lmrep.interop.huggingface.base import Family
from lmrep.interop.huggingface.config_json import ConfigTable, activation, size
from lmrep.interop.huggingface.head_classes import HeadClass, task_class
from lmrep.interop.huggingface.tensors import linear, norm

KEYS = {
    "tokens": size(100, "vocab"),
    "d": size(16, "width"),
    "depth": size(2, "layers"),
    "n_head": size(2, "heads"),
    "length": size(32, "max_length"),
    "act": activation("relu"),
}

CONFIG = ConfigTable(KEYS, {"positions": "learned", "norm": "pre", "share": "none", "embedding_norm": False,
                            "token_types": 0, "scaled_attention": True, "attention_by_layer": False})

TENSORS = {
    "words.weight": "encoder/embedding/token",
    "places.weight": "encoder/embedding/position",
    "blocks.{l}.q": linear("encoder/layers/attention/query"),
    "blocks.{l}.kv": linear("encoder/layers/attention/key", "encoder/layers/attention/value", transposed=False),
    "blocks.{l}.o": linear("encoder/layers/attention/output"),
    "blocks.{l}.norm1": norm("encoder/layers/attention_norm"),
    "blocks.{l}.up": linear("encoder/layers/mlp/in"),
    "blocks.{l}.down": linear("encoder/layers/mlp/out"),
    "blocks.{l}.norm2": norm("encoder/layers/mlp_norm"),
    "norm": norm("encoder/final_norm"),
    "mlm.dense": linear("objective/masked/transform"),
    "mlm.norm": norm("objective/masked/norm"),
    "mlm.out.weight": "objective/masked/output",
    "mlm.out.bias": "objective/masked/bias",
}

FAMILY = Family(
    name="megatron", prefix="net", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(HeadClass("MegatronModel"), HeadClass("MegatronForMaskedLM", ("masked",)),
           task_class("MegatronForTokenClassification", ["tagging"], "tags")))
