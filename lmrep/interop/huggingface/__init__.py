"""Published checkpoints in the layout of Hugging Face: one file per family, `read` and `write`.

A new family is a file with a `FAMILY`, and a row here.
"""

from lmrep.interop.huggingface import (
    albert,
    bert,
    distilbert,
    electra,
    gpt,
    gpt2,
    roberta,
    roberta_prelayernorm,
    t5,
    xlnet,
)
from lmrep.interop.huggingface.base import Family

__all__ = ["FAMILIES", "Family"]

# In this order a network of our own is tried as one of them.
FAMILIES: dict[str, Family] = {family.name: family for family in (
    *(each.FAMILY for each in (bert, roberta, electra, albert, gpt, gpt2, roberta_prelayernorm, distilbert, xlnet, t5)),
    *roberta.VARIANTS, t5.MT5,
    *(each.DECODER for each in (bert, roberta, electra, roberta_prelayernorm)), *roberta.VARIANT_DECODERS)}
