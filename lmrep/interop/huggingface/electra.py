"""ELECTRA (Clark et al., 2020). A directory holds either the discriminator or the generator."""

from collections.abc import Callable
from typing import Any

from lmrep.core.params import flatten, unflatten
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Pretraining, Specials
from lmrep.interop.huggingface.config_json import ConfigTable, size
from lmrep.interop.huggingface.head_classes import HeadClass, encoder_classes
from lmrep.interop.huggingface.tensors import Params, linear, norm
from lmrep.models import transformer
from lmrep.objectives import replaced_token
from lmrep.tasks.heads import Head

GENERATOR = "objective/generator"  # begins the paths of the generator's separate parameters, and of its head


KEYS = bert.KEYS | {
    "embedding_size": size(128, "embedding"),
    "hidden_size": size(256, "width"),
    "num_attention_heads": size(4, "heads"),
    "intermediate_size": size(1024, "mlp"),
}

CONFIG = ConfigTable(KEYS, bert.FIXED, {"init": "truncated_normal", "project_init": "glorot"})

TENSORS = {
    **bert.EMBEDDINGS,
    "embeddings_project": linear("encoder/project"),
    **bert.LAYERS,
    "generator_predictions.dense": linear("objective/masked/transform"),
    "generator_predictions.LayerNorm": norm("objective/masked/norm"),
    "generator_lm_head.bias": "objective/masked/bias",
    "generator_lm_head.weight": "objective/masked/output",
    "discriminator_predictions.dense": linear("objective/discriminator/transform"),
    "discriminator_predictions.dense_prediction": linear("objective/discriminator/out"),
}


def networks(config: transformer.Config, params: Params, objective: Any) -> dict[str, Callable]:
    """Splits a run of generator and discriminator into the two, the discriminator first, as `Pretraining.networks`."""
    if not any(path.startswith(GENERATOR) for path in params):
        return {}
    return {
        "discriminator": lambda: (
            config, {path: value for path, value in params.items() if not path.startswith(GENERATOR)}),
        "generator": lambda: (
            transformer.generator_config(config, objective.generator, objective.generator_layers),
            flatten(replaced_token.generator_as_masked_lm(unflatten(dict(params)), objective))),
    }


FAMILY = Family(
    name="electra", prefix="electra", config_from=CONFIG.read, config_to=CONFIG.write, tensors=TENSORS,
    heads=(HeadClass("ElectraModel"), HeadClass("ElectraForMaskedLM", ("masked",), always=bert.GELU),
           HeadClass("ElectraForPreTraining", ("discriminator",)),
           *encoder_classes("Electra", ("classifier.dense", "classifier.out_proj"),
                            ("sequence_summary.summary", "classifier"), Head(activation="gelu", input_dropout=0.1),
                            choice_keys=("summary_last_dropout",), choice_requires={
                                "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"})),
    specials=Specials(writes_ends=False),
    pretraining=Pretraining(
        objective="replaced_token", fields={"mask": 0.85, "keep": 0.15, "random": 0.0},
        preset="electra", networks=networks,
        without_head="it is a discriminator without its generator: `lmrep predict` finds replaced words but fills no "
                     "masks, and it cannot be evaluated; a run with init= initializes a generator"))
DECODER = bert.decoder(FAMILY, "ElectraForCausalLM", bert.GELU)
