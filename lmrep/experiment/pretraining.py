"""Functions that the pages of pretraining share. A page assigns its numbers between `start` and `finish`:

    chosen = choices(argument, {"base": "gpt2"}, objective="causal", format="stream", optimizer="adamw")
    config = start(chosen)
    config.steps, config.batch_size, config.length = 100_000, 512, 1024
    config.optimizer.learning_rate = 2.5e-4
    return finish(config, chosen)
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_collections

from lmrep import optimizers
from lmrep.config import loading
from lmrep.config.record import suggestion
from lmrep.core.errors import Broken
from lmrep.data.formats import FORMATS
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.experiment import network_contracts
from lmrep.experiment.config import default_config
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS, pretrained_models
from lmrep.objectives import OBJECTIVES
from lmrep.optimizers import OPTIMIZERS

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}

# The documentation of Python has about half a million tokens. It makes at least this many sequences of any published
# length, and SentencePiece learns at most some 11,000 pieces from it.
PYTHON_DOCS_BATCH, PYTHON_DOCS_PIECES = 256, 8000


class Paper(NamedTuple):
    """A paper that a page reproduces: an entry of the page's `PAPERS`, which reports compare runs with."""

    authors: str  # with the year
    corpus: str  # what the paper trained on
    # names in the page's `SIZES`; (): all sizes that no other paper of the page lists
    sizes: tuple[str, ...] = ()
    # fields and sections of the config that the paper does not state; the page's values are our choice
    unpublished: tuple[str, ...] = ()
    published: Mapping[str, Any] = {}  # {field: value} where the page differs from the paper


def choices(
    argument: str, sizes: Mapping[str, str], objective: str | tuple[str, ...], format: str | tuple[str, ...],
    optimizer: str, **others: Any
) -> SimpleNamespace:
    """Parses a page's argument to its choices.

    Args:
      argument: `name=value,name=value`. Every page has `size`, `model` (a preset or a network, in place of the size's),
        `objective`, `format`, `data`, `optimizer`, `mesh` and `init`.
      sizes: {size: preset}; the first is the default. The size "tiny" is added: the first network, scaled down for two
        cores.
      objective, format: the default, where every name of the table may be chosen; or a tuple of the names that may be
        chosen, the default first.
      optimizer: the default: a name in `optimizers.recipe_rows()`, or a name for values that the page sets itself.
      **others: the page's further choices, as `lmrep.config.loading.parse_argument` takes them.

    Returns:
      The choices as attributes, and `base`, the preset of the size; `preset`, the preset or network that is trained;
      `family`, the family of `preset`, or of `base` if `preset` is a network; and `published`, the size whose published
      numbers apply: the size of `preset`, or the default size if none has that preset.

    Raises:
      UserError: a choice does not exist.
      Broken: the page names a preset, objective or format that does not exist.
    """
    def among(names: str | tuple[str, ...], table: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        return (names, tuple(table)) if isinstance(names, str) else (names[0], names)

    for what, names, table in (("a preset", tuple(sizes.values()), PRESETS), ("a format", format, FORMATS),
                               ("an objective", objective, OBJECTIVES)):
        for name in (names,) if isinstance(names, str) else names:
            if name not in table:
                raise Broken(f"its `choices` name {name!r} as {what}, which does not exist"
                             f"{suggestion(name, table) or '; expected one of ' + ', '.join(table)}")
    default = next(iter(sizes))
    presets = {**sizes, "tiny": sizes[default]}
    chosen = loading.parse_argument(
        argument, size=(default, tuple(presets)), model=("", ("", *PRESETS, *pretrained_models())),
        objective=among(objective, OBJECTIVES), format=among(format, FORMATS),
        data=("python_docs", tuple(CORPORA)),
        optimizer=(optimizer, tuple(dict.fromkeys((optimizer, *optimizers.recipe_rows())))), **others, mesh="data",
        init="")
    chosen.base = presets[chosen.size]
    chosen.preset = chosen.model or chosen.base
    chosen.family = PRESETS.get(chosen.preset, PRESETS[chosen.base]).family
    chosen.published = next((size for size, preset in sizes.items() if preset == chosen.preset), default)
    return chosen


def start(chosen: SimpleNamespace) -> ml_collections.ConfigDict:
    """Returns the config that a page begins with: the choices, and every other field at its default.

    The tokenizer is that of the size's preset, with the vocabulary and case of the network. A network that reads
    characters or a source gets a tokenizer with characters or sentinels. An optimizer name of the page's own starts as
    AdamW.

    With `data=python_docs`, a SentencePiece vocabulary has at most 8,000 pieces, since the corpus is small, and
    `samples` are set; runs on other text take samples from that text. `init` is set here, and
    `lmrep.interop.checkpoint_config.load_config` sets the network and the tokenizer of that checkpoint.
    """
    optimizer = chosen.optimizer if chosen.optimizer in optimizers.recipe_rows() else optimizers.DEFAULT_RECIPE
    config = default_config(chosen.preset, chosen.objective, chosen.format, optimizer, chosen.mesh)
    config.name = f"tiny_{chosen.preset}" if chosen.size == "tiny" else chosen.preset
    config.init, config.data.corpus = chosen.init, CORPORA[chosen.data]
    base, is_preset = PRESETS[chosen.base], chosen.preset in PRESETS
    preset = PRESETS[chosen.preset] if is_preset else base
    fields = preset.config if is_preset else MODELS[chosen.preset].config()
    network = network_contracts.build_network(config.model.name, fields, Execution(), chosen.preset)

    name = base.tokenizer
    if "source" in network.inputs and not TOKENIZERS[name].trained.sentinels:
        name = next(name for name, row in TOKENIZERS.items() if row.trained.sentinels)
    tokenizer = TOKENIZERS[name]
    lowercase = preset.lowercase if tokenizer.lowercase is None else tokenizer.lowercase
    config.tokenizer.update({"name": name, "lowercase": lowercase, "vocab_size": preset.config.vocab})
    if "characters" in network.inputs and not tokenizer.characters:
        name = next(name for name, row in TOKENIZERS.items() if row.characters)
        config.tokenizer.update({"name": name, "lowercase": False})
    least = tokenizer.trained.min_size + 1
    if not is_preset or preset.config.vocab < least:  # enwik8 has only 204 of the tokenizer's bytes
        config.tokenizer.vocab_size = max(preset.config.vocab, least)
        config.model.vocab = 0
    if chosen.data == "python_docs":
        if tokenizer.trained.exact_size:
            config.tokenizer.vocab_size = min(config.tokenizer.vocab_size, PYTHON_DOCS_PIECES)
        config.samples = tuple(able.example for able in reversed(OBJECTIVES[chosen.objective].capabilities))
    return config


def finish(config: ml_collections.ConfigDict, chosen: SimpleNamespace) -> ml_collections.ConfigDict:
    """Adjusts the numbers that a page assigned to the choices, in place, and returns the config.

    A network chosen with `model=` gets positions for the page's sequences. With `data=python_docs`, a batch has at most
    256 sequences. A run is saved and validated about a hundred times.

    With size=tiny, two cores train the recipe within minutes: length, batch, vocabulary, steps, learning rate, warm-up
    and the intervals of saving and validation are scaled down, and the network gets the sizes, initial weights and
    dropout of `ModelDef.tiny`. Objective, format, optimizer and kind of tokenizer stay.
    """
    if chosen.model and config.model.get("max_length"):
        lengths = (config.length, *(stage["length"] or 0 for stage in config.stages))
        config.model.max_length = max(config.model.max_length, *lengths)
    if chosen.data == "python_docs":
        config.batch_size = min(config.batch_size, PYTHON_DOCS_BATCH)
    config.checkpoint.every = config.evaluation.every = min(10_000, max(1_000, config.steps // 100))
    if chosen.size != "tiny":
        return config
    config.steps, config.length, config.batch_size = 400, 64, 32
    config.checkpoint.every = config.evaluation.every = 100
    if any(stage["length"] for stage in config.stages):
        config.length = 32
        config.stages = tuple({**stage, "length": stage["length"] and 64} for stage in config.stages)
    tiny = MODELS[config.model.name].tiny
    config.model.update(tiny)
    if "embedding" in config.model and "embedding" not in tiny:
        config.model.embedding = min(config.model.embedding, 64)
    config.tokenizer.vocab_size = 2048
    config.optimizer.learning_rate = OPTIMIZERS[config.optimizer.name].tiny_rate
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    return config


def has_pair_label(format: str) -> bool:
    """Returns whether a format, with its default settings, gives a label for each pair of texts."""
    return "pair_label" in FORMATS[format].fields(FORMATS[format].config())
