"""ModernBERT's decoder, the network of Ettin (Weller et al., 2025): ModernBERT from left to right. A local layer reads
half as many positions as `local_attention` says, among them the position itself."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.huggingface import modernbert
from lmrep.interop.huggingface.base import Family
from lmrep.interop.huggingface.head_classes import SEQUENCE, HeadClass
from lmrep.interop.huggingface.tensors import linear, rows
from lmrep.models.transformer import Config
from lmrep.tasks.heads import Head


def config_from(config_json: Mapping[str, Any], path: str, tensors: Mapping | None = None) -> Config:
    """Converts a config.json to our config, as `Family.config_from`."""
    config = modernbert.config_from(config_json, path, tensors)
    if config.window < 2:
        raise UserError(f"{path} has local_attention {2 * config.window}, with which a local layer reads no other "
                        "position; expected 4 or more")
    return replace(config, window=config.window - 1)


def config_to(config: Config) -> dict[str, Any]:
    """Converts our config to config.json, as `Family.config_to`."""
    return modernbert.config_to(replace(config, window=config.window + 1 if config.window else 0))


TENSORS = {
    **{re.sub("^head", "lm_head", name): tensor._replace(
        also=(), paths=tuple(path.replace("/masked/", "/causal/") for path in tensor.paths))
       for (name, *_), tensor in rows(modernbert.TENSORS) if "Wqkv" not in name},
    **{f"layers.{{l}}.attn.{name[0]}_proj": linear(f"{modernbert.LAYER}/attention/{name}", bias=False)
       for name in ("query", "key", "value")}}

FAMILY = Family(
    name="modernbert-decoder", prefix="model", config_from=config_from, config_to=config_to, tensors=TENSORS,
    heads=(HeadClass("ModernBertDecoderForCausalLM", ("causal",), always=modernbert.GELU),
           HeadClass("ModernBertDecoderModel"),
           HeadClass("ModernBertDecoderForSequenceClassification", SEQUENCE,
                     tensors=modernbert.HEAD | {"classifier": linear("out", bias=False)},
                     form=Head(context="left", activation="gelu", dropout=0.0, bias=False, end_of_text=False,
                               norm=True), dropout_keys=(modernbert.RATE,))),
    specials=modernbert.FAMILY.specials,
    pretraining=modernbert.FAMILY.pretraining._replace(
        objective="causal", fields={"head": "transform"},
        without_head="it has no output layer, so `lmrep predict` cannot continue texts; a run with init= initializes "
                     "one"))
