"""What the pages of pretraining share: a page assigns its numbers between `start` and `finish`.

    chosen = choices(argument, {"base": "gpt2"}, objective="causal", format="stream", optimizer="adamw")
    config = start(chosen)
    config.steps, config.batch_size, config.length = 100_000, 512, 1024
    config.optimizer.learning_rate = 2.5e-4
    return finish(config, chosen)
"""

import fnmatch
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_collections

from lmrep import optimizers
from lmrep.config import loading
from lmrep.config.record import suggestion
from lmrep.core.errors import Broken
from lmrep.core.params import flatten
from lmrep.data.formats import FORMATS
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.experiment import contracts
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
    """What a page reproduces, for reports, which compare runs with the page: an entry of its `PAPERS`."""

    authors: str  # with the year
    corpus: str  # what the paper trained on
    # names in the page's `SIZES`; (): all sizes that no other paper of the page has
    sizes: tuple[str, ...] = ()
    # fields and sections of the config that the paper leaves open; the page's values are ours
    unpublished: tuple[str, ...] = ()
    published: Mapping[str, Any] = {}  # {field: value} where the page differs from the paper


def choices(
    argument: str, sizes: Mapping[str, str], objective: str | tuple[str, ...], format: str | tuple[str, ...],
    optimizer: str, **others: Any
) -> SimpleNamespace:
    """The choices that a page's argument makes.

    Args:
      argument: `name=value,name=value`. Every page has `size`, `model` (a preset or a network, in place of the size's),
        `objective`, `format`, `data`, `optimizer`, `mesh` and `init`.
      sizes: {size: preset}; the first is the default. A size "tiny" is added, the first one's network scaled down for
        two cores.
      objective, format: the default of the tables; or a tuple of the only names that may be chosen, default first.
      optimizer: the default, a recipe of a row of `OPTIMIZERS` or a name for what the page sets itself.
      **others: the page's further choices, as `lmrep.config.loading.parse_argument` takes them.

    Returns:
      The choices, with `base` (the preset of the size), `preset` (the preset or network that is trained), `family` (of
      the preset, or of the size's) and `published`, the size whose published numbers apply: the one of `preset`, the
      default of another network.

    Raises:
      UserError: a choice does not exist, or the page names another preset, objective or format than those of lmrep.
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
    """The config that a page begins with: what was chosen, and every other field at its default.

    The tokenizer belongs to the size, with the vocabulary and case of the network; a network that reads characters, or
    generates from a source, has one that can. An optimizer that the page names itself starts as AdamW.

    With `data=python_docs`, a SentencePiece vocabulary has 8,000 pieces, since the corpus is small; `samples` are set
    for it alone, since runs on other text are tried with that text. `init` is set here; whoever loads the page makes it
    take that checkpoint's network and tokenizer (`lmrep.interop.checkpoint_config.load_config`).
    """
    optimizer = chosen.optimizer if chosen.optimizer in optimizers.recipe_rows() else optimizers.DEFAULT_RECIPE
    config = default_config(chosen.preset, chosen.objective, chosen.format, optimizer, chosen.mesh)
    config.name = f"tiny_{chosen.preset}" if chosen.size == "tiny" else chosen.preset
    config.init, config.data.corpus = chosen.init, CORPORA[chosen.data]
    base, is_preset = PRESETS[chosen.base], chosen.preset in PRESETS
    preset = PRESETS[chosen.preset] if is_preset else base
    fields = preset.config if is_preset else MODELS[chosen.preset].config()
    network = contracts.build_network(config.model.name, fields, Execution(), chosen.preset)

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
    if not is_preset or preset.config.vocab < least:  # enwik8 has 204 bytes of the tokenizer's
        config.tokenizer.vocab_size = max(preset.config.vocab, least)
        config.model.vocab = 0
    if chosen.data == "python_docs":
        if tokenizer.trained.exact_size:
            config.tokenizer.vocab_size = min(config.tokenizer.vocab_size, PYTHON_DOCS_PIECES)
        config.samples = tuple(able.example for able in reversed(OBJECTIVES[chosen.objective].capabilities))

    paths = flatten(network.specs)
    config.optimizer.decay_skip = tuple(
        pattern for pattern in config.optimizer.decay_skip if fnmatch.filter(paths, pattern))
    return config


def finish(config: ml_collections.ConfigDict, chosen: SimpleNamespace) -> ml_collections.ConfigDict:
    """Fits the numbers that a page assigned to the choices, in place, and returns the config.

    Another network than the size's gets positions for the page's sequences; with `data=python_docs`, a batch has at
    most 256 sequences; a run is saved and validated about a hundred times; and size=tiny is scaled down.
    """
    if chosen.model and config.model.get("max_length"):
        lengths = (config.length, *(stage["length"] or 0 for stage in config.stages))
        config.model.max_length = max(config.model.max_length, *lengths)
    if chosen.data == "python_docs":
        config.batch_size = min(config.batch_size, PYTHON_DOCS_BATCH)
    config.checkpoint.every = config.evaluation.every = min(10_000, max(1_000, config.steps // 100))
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
    config.optimizer.learning_rate = OPTIMIZERS[config.optimizer.name].tiny_rate
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    config.checkpoint.every = config.evaluation.every = max(1, steps // 4)


def has_pair_label(format: str) -> bool:
    """Whether a format gives a label for each pair of texts, with its default settings."""
    return "pair_label" in FORMATS[format].fields(FORMATS[format].config())
