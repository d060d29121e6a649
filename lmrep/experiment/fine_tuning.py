"""From the argument of a task's experiment file to its config, and the published recipes of fine-tuning."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import ml_collections

from lmrep.config import loading
from lmrep.experiment.config import default_config
from lmrep.models import MODELS, PRESETS

# Fields of a config, by dotted path. Layer-wise rates and warm-up are those of the papers' code.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    # Devlin et al., 2019: 2 to 4 epochs, batch 16 or 32, rate 5e-5, 3e-5 or 2e-5; but with bias correction, whose
    # absence makes runs fail (Zhang et al., 2021).
    "bert": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 3e-5, "optimizer.bias_correction": True},
    # Devlin et al.'s code as it was released.
    "bert_original": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 3e-5},
    # Mosbach et al., 2021: small data sets.
    "mosbach": {"epochs": 20.0, "batch_size": 16, "optimizer.learning_rate": 2e-5, "optimizer.bias_correction": True},
}


def compose_task(argument: str, task: str, **own: Any) -> ml_collections.ConfigDict:
    """The config of a task.

    Args:
      argument: `name=value,name=value` out of `init` (a run or published directory; empty: from scratch), `size` (base,
        or tiny: a small network from nothing), `model` (a preset or a network, from scratch), `recipe`, `head` (auto or
        new) and `mesh`.
      task: a name in `TASKS`.
      **own: fields of sections of the config: data={"format": "trees"}.

    Raises:
      UserError: a choice does not exist.
    """
    chosen = loading.parse_argument(
        argument, init="", size=("base", ("base", "tiny")), model=("", ("", *PRESETS, *MODELS)),
        recipe=("bert", tuple(RECIPES)), head=("auto", ("auto", "new")), mesh="data")
    config = default_config(chosen.model or "bert_base", task, "examples", "bert", chosen.mesh)
    config.name, config.init, config.head, config.length = task, chosen.init, chosen.head, 128
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    config.update_from_flattened_dict(RECIPES[chosen.recipe])
    if not chosen.init:
        _from_scratch(config, chosen)
    for section, fields in own.items():
        config.update({section: fields})
    return config


def _from_scratch(config: ml_collections.ConfigDict, chosen: SimpleNamespace) -> None:
    """A network from random parameters, and a tokenizer of the training texts."""
    preset = PRESETS.get(chosen.model or "bert_base")
    if preset:
        config.tokenizer.update({"name": preset.tokenizer, "lowercase": preset.lowercase,
                                 "vocab_size": preset.config.vocab})
    config.model.vocab = 0
    if chosen.size == "tiny":
        config.model.update(MODELS[config.model.name].tiny)
        config.model.max_length = config.length
        config.tokenizer.vocab_size = 4096
        config.update_from_flattened_dict({"optimizer.learning_rate": 1e-3, "epochs": 5.0})
