"""RoBERTa (Liu et al., 2019): BERT with other positions, and gelu in its masked-LM head whatever config.json says."""

from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, masked_head
from lmrep.objectives.masked import RULES

HEAD = masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.bias")

FAMILY = Family(
    name="roberta", prefix="roberta", tied="lm_head.decoder.weight",
    classes={(): "RobertaModel", ("masked",): "RobertaForMaskedLM"},
    base=bert.BASE, heads=HEAD,
    record=bert.ConfigJson, fields=bert.FIELDS, architecture=bert.ARCHITECTURE, initialization={"init": "normal"},
    pad=1, positions_after_padding=True, head_activation="gelu", masking=RULES["roberta"], optimizer="roberta")
