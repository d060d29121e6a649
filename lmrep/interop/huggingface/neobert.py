"""NeoBERT (Le Breton et al., 2025), whose published directories come with code that is not run here.

One kernel holds query, key and value side by side in each head, and rotary positions turn neighbours in a head against
each other, not its halves: `_rows` reorders it. The masked-LM head has an output table and no transform before it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lmrep.interop.huggingface.base import Family, Pretraining
from lmrep.interop.huggingface.config_json import ConfigTable, activation, key, only, rate, size
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass, task_class
from lmrep.interop.huggingface.tensors import Tensor, linear, norm
from lmrep.models.transformer import Config
from lmrep.tasks.heads import Head

KEYS = {
    "vocab_size": size(30522, "vocab"),
    "hidden_size": size(768, "width"),
    "num_hidden_layers": size(28, "layers"),
    "num_attention_heads": size(12, "heads"),
    "intermediate_size": size(3072),  # of which the gated block has two thirds
    "max_length": size(1024, "max_length"),
    "norm_eps": key(1e-6, "norm_eps", above=0),
    "dropout": rate(0.0, "dropout"),
    "hidden_act": activation("SwiGLU", {"SwiGLU": "silu", "swiglu": "silu"}),
    "rms_norm": only(True),
    "rope": only(True),
    "ngpt": only(False),
    "tie_word_embeddings": key(False, "tied"),
}
FIXED = {"positions": "rotary", "rotary_base": 10_000.0, "rotary_fraction": 1.0, "norm": "pre", "norm_kind": "rms",
         "first_norm": True, "bias": False, "gated": True, "share": "none", "embedding_norm": False, "token_types": 0,
         "window": 0, "scaled_attention": True, "attention_by_layer": False, "query_key_norm": False,
         "layer_weights": "none", "attention_cap": 0.0, "logit_cap": 0.0, "mask_decoder": 0}
# The published code draws weights evenly between -0.02 and 0.02.
CONFIG = ConfigTable(KEYS, FIXED, {"init": "normal", "init_stddev": 0.0115, "attention_dropout": 0.0})
MULTIPLE = 8  # of which the width of the gated block is one


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Config:
    """Converts a config.json to our config, as `Family.config_from`."""
    values = CONFIG.values(config_json, path)
    width = int(2 * values.intermediate_size / 3)
    return CONFIG.config(values, path, mlp=-(-width // MULTIPLE) * MULTIPLE)


def config_to(config: Config) -> dict[str, Any]:
    """Converts our config to the keys of config.json, as `Family.config_to`."""
    wrong = ["mlp"] if config.mlp % MULTIPLE else []
    keys = CONFIG.write(replace(config, mlp=4 * config.width), wrong)  # the width of a network without this key
    return keys | {"intermediate_size": 3 * config.mlp // 2}


def _rows(config: Config) -> np.ndarray:
    """Returns the rows of the published kernel of query, key and value, in the order of our columns: all heads of the
    query, then those of the key and of the value."""
    neighbours = np.arange(config.head_width).reshape(-1, 2).T.reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
    within = np.stack([neighbours, neighbours, np.arange(config.head_width)])
    start = config.head_width * (3 * np.arange(config.heads) + np.arange(3)[:, None])
    return (start[..., None] + within[:, None]).reshape(-1)


LAYER = "encoder/layers"
TENSORS = {
    "encoder.weight": "encoder/embedding/token",
    "transformer_encoder.{l}.attention_norm": norm(f"{LAYER}/attention_norm", bias=False),
    "transformer_encoder.{l}.qkv.weight": Tensor(
        tuple(f"{LAYER}/attention/{name}/kernel" for name in ("query", "key", "value")), transposed=True, order=_rows),
    "transformer_encoder.{l}.wo": linear(f"{LAYER}/attention/output", bias=False),
    "transformer_encoder.{l}.ffn_norm": norm(f"{LAYER}/mlp_norm", bias=False),
    "transformer_encoder.{l}.ffn.w12": linear(f"{LAYER}/mlp/gate", f"{LAYER}/mlp/up", bias=False),
    "transformer_encoder.{l}.ffn.w3": linear(f"{LAYER}/mlp/out", bias=False),
    "layer_norm": norm("encoder/final_norm", bias=False),
    "decoder.weight": "objective/masked/output",
    "decoder.bias": "objective/masked/bias",
}
FAMILY = Family(
    name="neobert", prefix="model", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(HeadClass("NeoBERT"), HeadClass("NeoBERTLMHead", ("masked",)),
           task_class("NeoBERTForSequenceClassification", SEQUENCE, "dense", "classifier",
                      dropout_keys=["classifier_dropout"], form=Head(input_dropout=0.1))),
    pretraining=Pretraining(fields={"rate": 0.2, "head": "table"}, optimizer="adamw", preset="neobert"))
