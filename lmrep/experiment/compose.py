"""From the argument of an experiment file to its config.

An experiment file names its sizes and the choices of its own; everything that all files share is here:

    chosen = choose(argument, {"base": "albert_base"}, share=("all", tuple(SHARING)))
    config = compose(chosen)
    config.model.share = chosen.share
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, fields
from types import SimpleNamespace
from typing import Any

import ml_collections

from lmrep.config import loading
from lmrep.config.record import Bounds
from lmrep.core.params import flatten
from lmrep.data.formats import FORMATS
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.experiment import contracts
from lmrep.experiment.config import StageConfig, default_config
from lmrep.experiment.recipes import RECIPES, RECURRENT, Recipe
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS, pretrained_models
from lmrep.models.base import Model
from lmrep.objectives import OBJECTIVES
from lmrep.training import optimizers

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}

# The documentation of Python has about half a million tokens. It makes at least this many sequences of any published
# length, and SentencePiece learns at most some 11,000 pieces from it.
PYTHON_DOCS_BATCH, PYTHON_DOCS_PIECES = 256, 8000


def choose(argument: str, sizes: Mapping[str, str], recipe: Recipe | None = None, **own: Any) -> SimpleNamespace:
    """The choices that an experiment's argument makes.

    Args:
      argument: `name=value,name=value`. Every experiment has `size`, `model` (a preset or a network, in place of
        `size`), `objective`, `format`, `data`, `optimizer`, `mesh` and `init`.
      sizes: {size: preset}; the first is the default. A size "tiny", the default's network scaled down for two cores,
        is added.
      recipe: gives the other defaults; None for that of the default size.
      **own: the experiment's own choices, as `lmrep.config.loading.parse_argument` takes them.

    Returns:
      The choices, with `recipe` and `base` (recipe and preset of the size) and `preset` (a preset or a network).

    Raises:
      UserError: a choice does not exist.
    """
    presets = {**sizes, "tiny": next(iter(sizes.values()))}
    default = recipe or RECIPES[presets["tiny"]]
    optimizer = default.optimizer_name or default.optimizer
    chosen = loading.parse_argument(
        argument, size=(next(iter(sizes)), tuple(presets)), model=("", ("", *PRESETS, *pretrained_models())),
        **{"objective": (default.objective, tuple(OBJECTIVES)), "format": (default.format, tuple(FORMATS)),
           "data": ("python_docs", tuple(CORPORA)),
           "optimizer": (optimizer, tuple(dict.fromkeys((optimizer, *optimizers.RECIPES)))), **own},
        mesh="data", init="")
    chosen.base = presets[chosen.size]
    chosen.preset = chosen.model or presets[chosen.size]
    chosen.recipe = RECIPES[chosen.preset] if recipe is None and chosen.preset in sizes.values() else default
    return chosen


def compose(
    chosen: SimpleNamespace, recipe: Recipe | None = None, own_rates: bool = False
) -> ml_collections.ConfigDict:
    """The config of the choices: every field of `recipe`, by default `chosen.recipe`, that they leave as it is.

    Another optimizer than the recipe's keeps the recipe's learning rate and warm-up; with `own_rates`, it takes the
    rate of its own paper (LAMB: ALBERT's), and Adafactor its own schedule too.

    With `data=python_docs`, batches have at most 256 sequences and a SentencePiece vocabulary 8,000 pieces, since the
    corpus is small; `samples` are set for it alone, since runs on other text are tried with that text. `init` is set
    here; whoever loads the experiment makes it take that checkpoint's network and tokenizer
    (`lmrep.interop.checkpoint_config.load_config`).
    """
    recipe = recipe or chosen.recipe
    is_own = chosen.optimizer == (recipe.optimizer_name or recipe.optimizer)
    optimizer = recipe.optimizer if is_own else chosen.optimizer
    config = default_config(chosen.preset, chosen.objective, chosen.format, optimizer, chosen.mesh)
    config.name = f"tiny_{chosen.preset}" if chosen.size == "tiny" else chosen.preset
    config.init = chosen.init
    if chosen.data == "python_docs":  # capabilities have examples about Python
        config.samples = tuple(each.example for each in reversed(OBJECTIVES[chosen.objective].capabilities))
    _set_data(config, chosen, recipe)
    _set_fields(config, chosen, recipe, is_own)
    if is_own or not own_rates:
        config.optimizer.learning_rate = recipe.learning_rate
    elif chosen.optimizer == "lamb":
        config.optimizer.learning_rate = RECIPES["albert_base"].learning_rate  # for 4,096 sequences
    if is_own or not own_rates or chosen.optimizer != "adafactor":
        config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": recipe.warmup / recipe.steps})
    config.checkpoint.every = config.evaluation.every = min(10_000, max(1_000, recipe.steps // 100))
    if chosen.size == "tiny":
        scale_down(config)
    return config


def scale_down(config: ml_collections.ConfigDict, steps: int = 400) -> None:
    """Scales a published recipe, in place, down to one that two cores train within minutes.

    Network, length, batch, vocabulary, steps and learning rate change, dropout is off, and initial weights are as wide
    as a narrow network needs (1 / sqrt(d)). Objective, format, optimizer and tokenizer stay.
    """
    config.steps, config.length, config.batch_size = steps, 64, 32
    if any(stage["length"] for stage in config.stages):
        config.length = 32
        config.stages = tuple({**stage, "length": stage["length"] and 64} for stage in config.stages)
    tiny = MODELS[config.model.name].tiny
    config.model.update(tiny)
    if "embedding" in config.model and "embedding" not in tiny:
        config.model.embedding = min(config.model.embedding, 64)
    config.tokenizer.vocab_size = 2048
    config.optimizer.learning_rate = 1e-2 if config.optimizer.name == "lamb" else 2e-3
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    config.checkpoint.every = config.evaluation.every = max(1, steps // 4)


def compose_recurrent(
    argument: str, sizes: Mapping[str, Mapping[str, Any]], name: str, **model: Any
) -> ml_collections.ConfigDict:
    """The config of a recurrent language model, with the choices `tied` and `order` beside those of `choose`.

    Args:
      argument: the choices.
      sizes: {size: fields of the network}; the first is the default.
      name: the config's name is this after the size.
      **model: fields of the network in every size.
    """
    chosen = choose(argument, dict.fromkeys(sizes, "gpt2"), RECURRENT,
                    objective=("causal", ("causal",)), tied=("no", ("no", "yes")),
                    order=("contiguous", ("contiguous", "shuffled")))
    chosen.preset = chosen.model or "lstm"
    config = compose(chosen)
    config.name = f"{chosen.size}_{name}"
    if chosen.preset == "lstm":
        config.model.update({"tied": chosen.tied == "yes", **model})
        if chosen.size != "tiny":
            config.model.update(sizes[chosen.size])
            config.tokenizer.vocab_size = 10_000
    if chosen.format == "stream":
        config.format.order = chosen.order
    elif chosen.format == "stream_pair" and chosen.preset == "lstm":
        config.format.order = "shuffled"  # its examples overlap, and a state would know the next one
    return config


def _set_data(config: ml_collections.ConfigDict, chosen: SimpleNamespace, recipe: Recipe) -> None:
    """Corpus, tokenizer, lengths and batches."""
    config.data.corpus = CORPORA[chosen.data]
    base = PRESETS[chosen.base]
    network = PRESETS.get(chosen.preset, base)
    inputs, name = _network(chosen).inputs, base.tokenizer
    if "source" in inputs and not TOKENIZERS[name].sentinels:
        name = "sentencepiece_t5"
    tokenizer = TOKENIZERS[name]
    config.tokenizer.update({
        "name": name, "vocab_size": network.config.vocab,
        "lowercase": network.lowercase if tokenizer.lowercase is None else tokenizer.lowercase})
    if "characters" in inputs and not tokenizer.characters:
        config.tokenizer.update({"name": "elmo", "lowercase": False})
    least = tokenizer.min_vocab_size + 1
    if chosen.preset in MODELS or network.config.vocab < least:  # enwik8 has 204 bytes of the tokenizer's
        config.tokenizer.vocab_size = max(config.tokenizer.vocab_size, least)
        config.model.vocab = 0
    config.steps, config.batch_size, config.length = recipe.steps, recipe.batch_size, recipe.lengths[0][1]
    if len(recipe.lengths) > 1:
        config.stages = tuple(
            asdict(StageConfig(name=str(length), fraction=fraction, length=length if i else None))
            for i, (fraction, length) in enumerate(recipe.lengths))
    if chosen.model and config.model.get("max_length"):  # another network gets positions for this recipe's sequences
        config.model.max_length = max(config.model.max_length, *(length for _, length in recipe.lengths))
    if chosen.data == "python_docs":
        config.batch_size = min(config.batch_size, PYTHON_DOCS_BATCH)
        if tokenizer.exact_size:
            config.tokenizer.vocab_size = min(config.tokenizer.vocab_size, PYTHON_DOCS_PIECES)


def _set_fields(config: ml_collections.ConfigDict, chosen: SimpleNamespace, recipe: Recipe, is_own: bool) -> None:
    """The recipe's other fields, as far as its objective, format and optimizer are chosen."""
    applies = {"objective": chosen.objective == recipe.objective, "format": True, "optimizer": is_own}
    choices = {field.name: field.metadata.get("bounds", Bounds()) for field in fields(FORMATS[chosen.format].config)}
    for path, value in recipe.fields.items():
        section, _, field = path.partition(".")
        if section == "format" and field in choices and choices[field].broken_by(value):
            continue  # another format's field of the same name
        if applies[section] and field.partition(".")[0] in config[section]:
            config.update_from_flattened_dict({path: value})
    family = PRESETS.get(chosen.preset, PRESETS[chosen.base]).family
    config.objective.update(OBJECTIVES[chosen.objective].published.get(family, {}))
    if chosen.preset in MODELS or config.model.name != "transformer":  # which may have no parameters of some name
        paths = flatten(_network(chosen).specs)
        config.optimizer.decay_skip = tuple(
            pattern for pattern in config.optimizer.decay_skip if fnmatch.filter(paths, pattern))
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = recipe.sentence_pair and has_pair_label(chosen.format)


def _network(chosen: SimpleNamespace) -> Model:
    """The network of a preset, or one with its defaults."""
    preset = PRESETS.get(chosen.preset)
    name = preset.model if preset else chosen.preset
    return contracts.build_network(name, preset.config if preset else MODELS[name].config(), Execution(), chosen.preset)


def has_pair_label(name: str) -> bool:
    """Whether a format gives a label for each pair of texts, with its default settings."""
    return "pair_label" in FORMATS[name].fields(FORMATS[name].config())
