"""RoBERTa (Liu et al., 2019): BERT with other positions, and gelu in its masked-LM head whatever config.json says.

CamemBERT (Martin et al., 2020), XLM-RoBERTa (Conneau et al., 2020) and data2vec's text network (Baevski et al., 2022)
are RoBERTa's network, and their files differ in the names of classes.
"""

from dataclasses import replace

from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ConfigTable
from lmrep.interop.huggingface.head_classes import HeadClass, encoder_classes
from lmrep.interop.huggingface.tensors import Tensor, linear, norm
from lmrep.tasks.heads import Head

CONFIG = ConfigTable(bert.KEYS, bert.FIXED, {"init": "normal"})


HEAD_TENSORS = {
    "pooler.dense": linear("objective/pair/pooler"),
    "lm_head.dense": linear("objective/masked/transform"),
    "lm_head.layer_norm": norm("objective/masked/norm"),
    "lm_head.bias": Tensor(("objective/masked/bias",), also=("lm_head.decoder.bias",)),
    "lm_head.decoder.weight": "objective/masked/output",
}

TENSORS = {**bert.EMBEDDINGS, **bert.LAYERS, **HEAD_TENSORS}


def classes(start: str, prefix: str) -> tuple[HeadClass, ...]:
    """Makes the classes whose names begin with `start`. `prefix` is the attribute of the base model. Multiple choice
    has a pooler, as in BERT."""
    return (HeadClass(f"{start}Model"), HeadClass(f"{start}ForMaskedLM", ("masked",), always=bert.GELU),
            *encoder_classes(start, ("classifier.dense", "classifier.out_proj"),
                             (f"{prefix}.pooler.dense", "classifier"), Head(input_dropout=0.1),
                             choice_keys=("hidden_dropout_prob",)))


FAMILY = Family(
    name="roberta", prefix="roberta", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=classes("Roberta", "roberta"), specials=Specials(pad=1, shifts_positions=True),
    pretraining=Pretraining(
        fields={"count": "floor", "mask_specials": True, "random_specials": False}, optimizer="roberta",
        preset="roberta"))
DECODER = bert.decoder(FAMILY, "RobertaForCausalLM", bert.GELU)

VARIANTS = {start: replace(FAMILY, name=name, prefix=prefix, config_to=None, heads=classes(start, prefix))
            for name, start, prefix in (("camembert", "Camembert", "roberta"), ("xlm-roberta", "XLMRoberta", "roberta"),
                                        ("data2vec-text", "Data2VecText", "data2vec_text"))}
VARIANT_DECODERS = [bert.decoder(variant, f"{start}ForCausalLM", bert.GELU) for start, variant in VARIANTS.items()]
