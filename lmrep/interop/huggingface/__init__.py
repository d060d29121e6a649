"""Reads and writes published checkpoints in the layout of Hugging Face, with one file per family.

To add a family, add a file with a `FAMILY`, and a row here.
"""

from lmrep.interop.huggingface import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    gpt,
    gpt2,
    modernbert,
    modernbert_decoder,
    neobert,
    roberta,
    t5,
    xlnet,
)
from lmrep.interop.huggingface import roberta_prelayernorm as prelayernorm
from lmrep.interop.huggingface.base import Family

__all__ = ["FAMILIES", "Family"]

# `write.choose_family` prefers earlier families.
FAMILIES: dict[str, Family] = {family.name: family for family in (
    bert.FAMILY, roberta.FAMILY, electra.FAMILY, albert.FAMILY, gpt.FAMILY, gpt2.FAMILY, prelayernorm.FAMILY,
    distilbert.FAMILY, xlnet.FAMILY, t5.FAMILY, deberta.FAMILY, modernbert.FAMILY,
    modernbert_decoder.FAMILY, neobert.FAMILY,
    *roberta.VARIANTS.values(), t5.MT5,
    *(module.DECODER for module in (bert, roberta, electra, prelayernorm)), *roberta.VARIANT_DECODERS)}
