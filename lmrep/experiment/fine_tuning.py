"""Makes the config of a task from the argument of its page, with the numbers that papers fine-tune with."""

import glob
import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import ml_collections

from lmrep.config import loading
from lmrep.config.record import choose
from lmrep.core.errors import UserError
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.experiment import page_files
from lmrep.experiment.config import default_config, model_config, model_def
from lmrep.experiment.record import AUTO
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS
from lmrep.models.base import Context, Model
from lmrep.tasks import TASKS, as_text, heads, networks
from lmrep.tasks.known import KNOWN, KnownSet

TINY = {"optimizer.learning_rate": 1e-3, "epochs": 5.0}  # of size=tiny, before `small_networks` chooses

Row = Mapping[str, Any]  # fields of a config by dotted path


class Recipe(NamedTuple):
    """The numbers that a paper fine-tunes with, `recipe=NAME` on the pages of tasks. All have linear decay and, where
    nothing else is said, a warm-up over the first tenth of the steps."""

    rows: Mapping[str, Row]  # a name in `KNOWN` -> fields; "": of other sets, and what the row of a set leaves out
    grid: Mapping[str, tuple] = MappingProxyType({})  # field -> values, for `lmrep sweep --grid=NAME`
    # Of the default recipe alone: the network of a task that starts from none, and the recipe in `OPTIMIZERS` with the
    # numbers that no recipe sets.
    network: str = ""
    optimizer: str = ""


def epochs(number: float, batch_size: int, rate: float, **more: Any) -> Row:
    """Returns the fields for a number of passes over the training data. `more` are fields of the optimizer, or, with __
    for dots, of the config."""
    return {"epochs": float(number), "batch_size": batch_size, "optimizer.learning_rate": rate, **_of_optimizer(more)}


def steps(number: int, batch_size: int, rate: float, warmup: int, **more: Any) -> Row:
    """Returns the fields for a number of steps, the first `warmup` of which raise the learning rate."""
    return {"steps": number, "batch_size": batch_size, "optimizer.learning_rate": rate,
            "optimizer.schedule.warmup": warmup, "optimizer.schedule.warmup_fraction": 0.0, **_of_optimizer(more)}


def _of_optimizer(more: Mapping[str, Any]) -> Row:
    return {name.replace("__", ".") if "__" in name or name == "length" else f"optimizer.{name}": value
            for name, value in more.items()}


@cache
def recipes() -> Mapping[str, Recipe]:
    """Returns {name: recipe} of `FINE_TUNING` of the package's pages."""
    files = page_files.installed(("FINE_TUNING = ",)).values()
    return {name: recipe for file in files for name, recipe in loading.load_module(file).FINE_TUNING.items()}


def default_recipe() -> Recipe:
    """Returns the recipe of `recipe=auto`, whose numbers `small_networks` changes for narrow networks."""
    return next(recipe for recipe in recipes().values() if recipe.network)


def recipe_fields(recipe: str, known: str = "") -> Row:
    """Returns the fields that a recipe, or "auto", sets for a known data set; "" for any other."""
    rows = (default_recipe() if recipe == AUTO else recipes()[recipe]).rows
    return {**rows[""], **rows.get(known, {})}


def grids() -> Mapping[str, Mapping[str, tuple]]:
    """Returns {name: grid} of the recipes whose papers searched one, for `lmrep sweep --grid=NAME`."""
    return {name: recipe.grid for name, recipe in recipes().items() if recipe.grid}


def compose_task(
    argument: str, task: str, known: str = "", network: str = "linear", model: str = "", base: str = "", **sections: Any
) -> ml_collections.ConfigDict:
    """Makes the config of a task.

    Args:
      argument: `name=value,name=value`, with any of
        init: a run or a published directory to start from; empty: random parameters.
        size: base; or tiny, a small network with random parameters, for two cores.
        model: a preset or a network, with random parameters; none: no network below the layers that read frozen
          vectors, words or characters.
        recipe: a name in `recipes()`; auto: `default_recipe`, with other numbers for narrow ones (`small_networks`).
        head: auto, or new.
        network: what is between the encoder and the head: linear (nothing) or bilstm; for taggers also crf or
          bilstm_crf, for classifiers also bcn.
        data: the folder with the published files of a known set, or tfds.
        features: a run or a published directory, whose frozen vectors the task reads (ELMo); no other network is
          trained then, unless `init` or `model` names one.
        vectors: a text file of word vectors. If nothing else is read, the head gets their mean over tokens, unless
          `objective.pooling` is set.
        as_text: true: the task as text to text, with an encoder-decoder (`lmrep.tasks.as_text`).
        mesh: as for pretraining.
      task: a name in `TASKS`.
      known: a name in `KNOWN`.
      network, model: the defaults of these two choices; a model of "none" stands for no network. `model` is ignored
        with `init`, `features`, `vectors` or size=tiny.
      base: the preset or network of size=tiny, and where no other is named; by default that of `default_recipe`.
      **sections: section of the config -> fields to set, as data={"format": "trees"}.

    Raises:
      UserError: a choice, or the task, does not exist.
    """
    chosen = _chosen(argument, task, known, network)
    objective, data = {}, {}
    if chosen.as_text:
        objective, data = as_text.text_form(task, known, tfds=chosen.data == "tfds")
        task, base = as_text.TASK, as_text.NETWORK
    # The network: that of init, the named one, a tiny one, or none below frozen vectors.
    if not (chosen.init or chosen.model or chosen.size == "tiny"):
        chosen.model = "none" if chosen.features or chosen.vectors else model
    built = chosen.model or base or default_recipe().network
    config = default_config(built, task, "examples", default_recipe().optimizer, chosen.mesh)
    config.name, config.init, config.head, config.length = known or task, chosen.init, chosen.head, 128
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    # The data, and how they are measured.
    if known:
        _use(config, KNOWN[known], chosen.data)
    if chosen.as_text:
        config.objective.update(objective)
        for name, value in data.items():
            config.data[name] = value
        config.checkpoint.best = objective["metrics"][0]
    # The numbers of the paper, then of the page.
    config.recipe = "features" if chosen.model == "none" else chosen.recipe
    config.update_from_flattened_dict(recipe_fields(config.recipe, known))
    for section, fields in sections.items():
        config.update({section: fields})
    if not chosen.init:
        if objective:  # it gives texts back as they were
            config.tokenizer.update({"name": "sentencepiece_unigram", "lowercase": False})
        _from_scratch(config, chosen, built)
    _use_head(config, chosen)
    return config


def _chosen(argument: str, task: str, known: str, network: str) -> SimpleNamespace:
    """Parses an argument of `compose_task`; `data` is "" without a known set."""
    field = choose(TASKS, task, "the task").objective.config.__dataclass_fields__.get("network")
    choices = field.metadata["bounds"].choices if field else ("linear",)
    chosen = loading.parse_argument(
        argument, init="", size=("base", ("base", "tiny")), model=("", ("", *PRESETS, *MODELS)),
        recipe=(AUTO, (AUTO, *recipes())), head=("auto", ("auto", "new")),
        network=(network, choices), features="", vectors="", as_text=False, mesh="data",
        **{"data": ""} if known else {})
    chosen.data = vars(chosen).get("data", "")
    if chosen.as_text and chosen.network != "linear":
        raise UserError(f"as_text=true generates texts, without a head, and network={chosen.network} is below a "
                        "head; leave one of them out")
    return chosen


def _use_head(config: ml_collections.ConfigDict, chosen: SimpleNamespace) -> None:
    """Sets what the head reads beside the network, and what is between the two."""
    config.frozen = {name: path for name, path in (("features", chosen.features), ("words", chosen.vectors)) if path}
    for name in config.frozen:
        if name not in config.objective:
            raise UserError(f"the task {config.objective.name} reads no {'word vectors' if name == 'words' else name}; "
                            "leave them out")
    if chosen.features:
        config.objective.features.layers = "mix:all"
    if chosen.vectors:
        config.objective.words.lookup = "both"
    if chosen.model == "none" and not chosen.features and "pooling" in config.objective:
        config.objective.pooling = "mean"  # special tokens have no vector of their own
    if chosen.network != "linear":
        config.objective.update({"network": chosen.network, **networks.FIELDS.get(chosen.network, {})})


class TaskNetwork(NamedTuple):
    """A network as a task uses it."""

    model: Mapping[str, Any]  # fields of `config.model` that the task changes
    head: Mapping[str, Any]  # fields of the task's head that the network needs
    network: Model  # built with the fields of `model`


def task_network(task: str, model: Mapping[str, Any]) -> TaskNetwork:
    """Builds the network of `config.model` for a task in `TASKS`. A task that does not generate texts uses only the
    encoder of an encoder-decoder. The head of a network that does not attend to both sides has `context="left"`."""
    definition, objective = model_def(model), TASKS[task].objective

    def build(changes: Mapping[str, Any]) -> Model:
        return definition.build(model_config({**model, **changes}), Execution(), model["name"])

    changes, network = {}, build({})
    if Context.SOURCE in network.conditions_on and objective.conditions_on(objective.config()) != Context.SOURCE:
        changes = dict(definition.encoder)
        network = build(changes)
    head = {} if Context.BOTH in network.conditions_on else {"context": "left"}
    return TaskNetwork(changes, head | ({"pooling": "mean"} if network.head_style.pooling == "mean" else {}), network)


def compose_known(
    argument: str, known: str, network: str = "linear", model: str = "", base: str = ""
) -> ml_collections.ConfigDict:
    """Makes the config of a known data set's task; the arguments are those of `compose_task`."""
    return compose_task(argument, choose(KNOWN, known, "the known set").task, known, network, model, base)


def _use(config: ml_collections.ConfigDict, known: KnownSet, data: str) -> None:
    """Sets the files of a known set in the folder `data`, which may lack the test file, or the set's form in TFDS. With
    "" the files stay unset."""
    if data == "tfds" and known.tfds is None:
        raise UserError("this data set is not in TFDS in its published form; give the folder of its files: data=FOLDER")
    files, fields = ({}, known.tfds) if data == "tfds" else known.form(data)
    paths = {split: os.path.join(data, name) for split, name in files.items() if data}
    if os.path.isdir(data) and not glob.glob(os.path.join(glob.escape(data), files.get("test", ""))):
        del paths["test"]
    config.data.update({**fields, **paths})
    if config.objective.name == known.task:
        config.objective.update(known.objective)
        config.checkpoint.best = known.best or TASKS[known.task].best
    config.length = known.length
    config.update_from_flattened_dict(dict(known.fields))


def _from_scratch(config: ml_collections.ConfigDict, chosen: SimpleNamespace, name: str) -> None:
    """Sets the network `name` with random parameters, and a tokenizer that is trained on the training texts."""
    preset = PRESETS.get(name)
    if preset:
        config.tokenizer.update({"name": preset.tokenizer, "lowercase": preset.lowercase,
                                 "vocab_size": preset.config.vocab})
        config.objective.update(heads.published(TASKS[config.objective.name].objective.config, preset.family))
    built = task_network(config.objective.name, config.model)
    config.model.update(built.model)
    config.objective.update({name: value for name, value in built.head.items() if name in config.objective})
    if not preset and "characters" in built.network.inputs:
        name = next(name for name, row in TOKENIZERS.items() if row.characters)
        config.tokenizer.update({"name": name, "lowercase": False})
    config.model.vocab = 0
    if chosen.size == "tiny":
        config.model.update(MODELS[config.model.name].tiny)
        if config.model.max_length:
            config.model.max_length = config.length
        config.tokenizer.vocab_size = 4096
        rises = config.optimizer.schedule.name == "slanted_triangular"  # by itself
        config.update_from_flattened_dict(TINY | {"steps": 0, "optimizer.schedule.warmup": 0,
                                                  "optimizer.schedule.warmup_fraction": 0.0 if rises else 0.1})
