"""ELECTRA (Clark et al., 2020): a directory holds the discriminator or the generator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmrep.core.params import flatten, unflatten
from lmrep.interop.huggingface import bert
from lmrep.interop.huggingface.base import Family, Params, linear, masked_head, size
from lmrep.interop.huggingface.task_classes import encoder_classes
from lmrep.models import transformer
from lmrep.objectives import replaced_token
from lmrep.objectives.masked import RULES

GENERATOR = "objective/generator"  # begins the paths of the generator's own parameters, and of its head


@dataclass(frozen=True)
class ConfigJson(bert.ConfigJson):
    """ELECTRA's keys, of the generator or of the discriminator."""

    embedding_size: int = size(128, "width of the tables")
    hidden_size: int = size(256, "d")
    num_attention_heads: int = size(4, "h")
    intermediate_size: int = size(1024, "f")


FIELDS = bert.FIELDS | {"embedding_size": "embedding"}


def networks(config: transformer.Config, params: Params, objective: Any) -> dict[str, Callable]:
    """The two networks of a joint run, the main one first."""
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
    name="electra", preset_family="electra", prefix="electra",
    classes={(): "ElectraModel", ("masked",): "ElectraForMaskedLM", ("discriminator",): "ElectraForPreTraining"},
    base={**bert.EMBEDDINGS, **linear("encoder/project", "embeddings_project"), **bert.layers()},
    heads={
        **masked_head("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.weight",
                      "generator_lm_head.bias"),
        **linear("objective/discriminator/transform", "discriminator_predictions.dense"),
        **linear("objective/discriminator/out", "discriminator_predictions.dense_prediction"),
    },
    tasks=encoder_classes("Electra", ("classifier.dense", "classifier.out_proj"),
                          ("sequence_summary.summary", "classifier"), activation="gelu", input_dropout=0.1,
                          choice_keys=("summary_last_dropout",), choice_requires={
                              "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}),
    record=ConfigJson, fields=FIELDS, architecture=bert.ARCHITECTURE,
    initialization={"init": "truncated_normal", "project_init": "glorot"},
    writes_bos_eos=False, head_activation="gelu", objective="replaced_token",
    without_lm_head="it is a discriminator without its generator: `lmrep predict` finds replaced words but fills no "
                    "masks, and it cannot be evaluated; a run with init= initializes a generator",
    objective_fields=RULES["bert"] | {"mask": 0.85, "keep": 0.15, "random": 0.0}, networks=networks)

DECODER = bert.decoder(FAMILY, "ElectraForCausalLM")
