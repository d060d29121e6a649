"""RoBERTa (Liu et al., 2019): BERT with other positions, and gelu in its masked-LM head whatever config.json says.

CamemBERT (Martin et al., 2020), XLM-RoBERTa (Conneau et al., 2020) and data2vec's text network (Baevski et al., 2022)
are RoBERTa's network, and their files differ in the names of classes.
"""

import dataclasses

from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, masked_head
from lmrep.interop.huggingface.task_classes import TaskClass, encoder_classes
from lmrep.objectives.masked import RULES

HEAD = masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias",
                   "lm_head.decoder.bias")


def task_classes(start: str, prefix: str) -> dict[str, TaskClass]:
    """The classes of tasks, by the start of their names and the base model's attribute. Multiple choice has a pooler,
    as BERT does."""
    return encoder_classes(start, ("classifier.dense", "classifier.out_proj"),
                           (f"{prefix}.pooler.dense", "classifier"), input_dropout=0.1,
                           choice_keys=("hidden_dropout_prob",))


FAMILY = Family(
    name="roberta", preset_family="roberta", prefix="roberta",
    classes={(): "RobertaModel", ("masked",): "RobertaForMaskedLM"},
    base=bert.BASE, heads=HEAD, tasks=task_classes("Roberta", "roberta"),
    record=bert.ConfigJson, fields=bert.FIELDS, architecture=bert.ARCHITECTURE, initialization={"init": "normal"},
    pad=1, positions_after_padding=True, head_activation="gelu", objective_fields=RULES["roberta"], optimizer="roberta")

DECODER = bert.decoder(FAMILY, "RobertaForCausalLM")
VARIANTS = tuple(
    dataclasses.replace(
        FAMILY, name=name, variant_of=FAMILY.name, prefix=prefix, tasks=task_classes(start, prefix),
        classes={(): f"{start}Model", ("masked",): f"{start}ForMaskedLM"})
    for name, start, prefix in (("camembert", "Camembert", "roberta"), ("xlm-roberta", "XLMRoberta", "roberta"),
                                ("data2vec-text", "Data2VecText", "data2vec_text")))
VARIANT_DECODERS = tuple(
    bert.decoder(variant, variant.classes[("masked",)].replace("MaskedLM", "CausalLM")) for variant in VARIANTS)
