"""From the argument of a task's experiment file to its config, and the published recipes of fine-tuning."""

import glob
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_collections

from lmrep.config import loading
from lmrep.config.record import choose, read
from lmrep.core.errors import UserError
from lmrep.experiment.config import default_config
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS
from lmrep.models.base import Context, Model
from lmrep.tasks import TASKS, networks
from lmrep.tasks.as_text import text_form
from lmrep.tasks.known import KNOWN, KnownSet

_ROBERTA = {"epochs": 10.0, "batch_size": 32, "optimizer.learning_rate": 1e-5, "optimizer.betas": (0.9, 0.98),
            "optimizer.weight_decay": 0.1, "optimizer.clip": 0.0, "optimizer.bias_correction": True,
            "optimizer.decay_skip": (), "optimizer.schedule.warmup_fraction": 0.06}
_BOTH = {"format.both_orders": True}
_XLNET_SQUAD = {"length": 512, "optimizer.eps": 1e-6, "optimizer.layer_decay": 0.75,
                "optimizer.layer_decay_of": "gradient"}
_ELECTRA = {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 1e-4, "optimizer.layer_decay": 0.8}
_ALBERT = {"batch_size": 32, "optimizer.learning_rate": 1e-5}


def _steps(rate: float, batch_size: int, steps: int, warmup: int) -> dict[str, Any]:
    return {"optimizer.learning_rate": rate, "batch_size": batch_size, "steps": steps,
            "optimizer.schedule.warmup": warmup, "optimizer.schedule.warmup_fraction": 0.0}


# Published settings: fields of a config by dotted path, "" for all data sets, and what differs for one of them.
# All have linear decay and, where nothing else is said, a warm-up over the first tenth of the steps.
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # Devlin et al., 2019 (2 to 4 epochs, batch 16 or 32, rate 5e-5, 3e-5 or 2e-5), with bias correction, whose absence
    # makes runs on small data sets fail (Zhang et al., 2021).
    "bert": {"": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 3e-5, "optimizer.bias_correction": True},
             "squad1": {"optimizer.learning_rate": 5e-5},
             "squad2": {"optimizer.learning_rate": 5e-5, "epochs": 2.0, "batch_size": 48},
             "swag": {"batch_size": 16, "optimizer.learning_rate": 2e-5}},
    # As released: without bias correction.
    "bert_released": {"": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 5e-5}},
    # Turc et al., 2019: the small networks.
    "bert_small": {"": {"epochs": 4.0, "batch_size": 32, "optimizer.learning_rate": 3e-4,
                        "optimizer.bias_correction": True}},
    # Mosbach et al., 2021: stable on small data sets.
    "mosbach": {"": {"epochs": 20.0, "batch_size": 16, "optimizer.learning_rate": 2e-5,
                     "optimizer.bias_correction": True}},
    # fairseq's configs; for other sets the paper's grid.
    "roberta": {"": _ROBERTA, "mnli": _steps(1e-5, 32, 123_873, 7432), "qnli": _steps(1e-5, 32, 33_112, 1986),
                "qqp": _steps(1e-5, 32, 113_272, 28_318), "rte": _steps(2e-5, 16, 2036, 122),
                "sst2": _steps(1e-5, 32, 20_935, 1256), "mrpc": _steps(1e-5, 16, 2296, 137),
                "cola": _steps(1e-5, 16, 5336, 320), "stsb": _steps(2e-5, 16, 3598, 214)},
    # The released code: rates by layer, 10 epochs for the smallest sets.
    "electra": {"": _ELECTRA, "rte": {"epochs": 10.0}, "stsb": {"epochs": 10.0} | _BOTH, "mrpc": _BOTH,
                "squad1": {"epochs": 2.0, "length": 512}, "squad2": {"epochs": 2.0, "length": 512}},
    "electra_large": {"": _ELECTRA | {"optimizer.learning_rate": 5e-5, "optimizer.layer_decay": 0.9},
                      "rte": {"epochs": 10.0}, "stsb": {"epochs": 10.0} | _BOTH, "mrpc": _BOTH,
                      "squad1": {"epochs": 2.0, "length": 512}, "squad2": {"epochs": 2.0, "length": 512}},
    # run_glue.sh of google-research/albert.
    "albert": {"": _ALBERT, "cola": _steps(1e-5, 16, 5336, 320), "stsb": _steps(2e-5, 16, 3598, 214),
               "sst2": _steps(1e-5, 32, 20_935, 1256), "mnli": _steps(3e-5, 128, 10_000, 1000),
               "qnli": _steps(1e-5, 32, 33_112, 1986), "qqp": _steps(5e-5, 128, 14_000, 1000),
               "rte": _steps(3e-5, 32, 800, 200), "mrpc": _steps(2e-5, 32, 800, 200),
               "squad1": {"batch_size": 48, "optimizer.learning_rate": 5e-5, "steps": 3649},
               "squad2": {"batch_size": 48, "optimizer.learning_rate": 3e-5, "steps": 8144}},
    # The README and the scripts of zihangdai/xlnet. For other sets, the rate and batch of most of them.
    "xlnet": {"": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 2e-5, "optimizer.weight_decay": 0.0,
                   "optimizer.bias_correction": True, "optimizer.eps": 1e-8},
              "stsb": _steps(5e-5, 32, 1200, 120), "imdb": _steps(2e-5, 32, 4000, 500) | {"length": 512},
              "squad1": _steps(3e-5, 48, 8000, 1000) | _XLNET_SQUAD,
              "squad2": _steps(3e-5, 48, 8000, 1000) | _XLNET_SQUAD},
    # The README of facebookresearch/SpanBERT.
    "spanbert": {"": {"epochs": 10.0, "batch_size": 32, "optimizer.learning_rate": 2e-5,
                      "optimizer.bias_correction": True},
                 "squad1": {"epochs": 4.0, "length": 512}, "squad2": {"epochs": 4.0, "length": 512}},
    # What is trained above frozen vectors, from random values: Adam as in Peters et al., 2017, whose gradients are
    # clipped at 5.
    "features": {"": {"epochs": 20.0, "batch_size": 32, "optimizer.learning_rate": 1e-3, "optimizer.weight_decay": 0.0,
                      "optimizer.clip": 5.0, "optimizer.bias_correction": True, "optimizer.eps": 1e-8}},
    # The study of Raffel et al., 2019, of tasks as text to text.
    "t5": {"": _steps(1e-3, 128, 2**18, 0) | {
        "optimizer.name": "adafactor", "optimizer.weight_decay": 0.0, "optimizer.clip": 0.0,
        "optimizer.schedule.name": "constant"}},
    # Radford et al., 2018. Their language-model loss needs a network that reads from left to right, and is a field of
    # the task: objective.auxiliary=0.5.
    "gpt": {"": {"epochs": 3.0, "batch_size": 32, "optimizer.learning_rate": 6.25e-5, "optimizer.eps": 1e-8,
                 "optimizer.bias_correction": True, "optimizer.schedule.warmup_fraction": 0.002}},
}

# The papers' grids, for `lmrep sweep --grid=NAME`: field -> values.
GRIDS: Mapping[str, Mapping[str, tuple]] = {
    "bert": {"batch_size": (16, 32), "optimizer.learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2.0, 3.0, 4.0)},
    "bert_small": {"batch_size": (8, 16, 32, 64, 128), "optimizer.learning_rate": (3e-4, 1e-4, 5e-5, 3e-5)},
    "roberta": {"batch_size": (16, 32), "optimizer.learning_rate": (1e-5, 2e-5, 3e-5)},
    "electra": {"optimizer.learning_rate": (3e-4, 1e-4, 5e-5)},
}


def compose_task(
    argument: str, task: str, known: str = "", network: str = "linear", model: str = "", base: str = "bert_base",
    **own: Any
) -> ml_collections.ConfigDict:
    """The config of a task.

    Args:
      argument: `name=value,name=value` out of
        init: a run or a published directory to start from; empty: from scratch.
        size: base; or tiny, a small network from nothing for two cores.
        model: a preset or a network, from scratch; none: only what is above frozen vectors, words or characters.
        recipe: of `RECIPES`.
        head: auto, or new.
        network: between the encoder and the head: linear (nothing) or bilstm; of taggers also crf or bilstm_crf, of
          classifiers bcn.
        data: the folder with the published files of a known set, or tfds.
        features: a run or a published directory, whose frozen vectors the task reads (ELMo); no other network is
          trained then, unless `init` or `model` names one.
        vectors: a text file of word vectors. Of texts that nothing else is read of, the mean over tokens goes to the
          head, unless `objective.pooling` is set.
        as_text: true: the task as text to text, with an encoder-decoder (`lmrep.tasks.as_text`).
        mesh: as for pretraining.
      task: a name in `TASKS`.
      known: a name in `KNOWN`.
      network, model: those where the argument has none, nor `init`; "none" where everything that is read is frozen.
      base: the preset or network of size=tiny.
      **own: fields of sections of the config: data={"format": "trees"}.

    Raises:
      UserError: a choice, or the task, does not exist.
    """
    choose(TASKS, task, "the task")
    chosen = loading.parse_argument(
        argument, init="", size=("base", ("base", "tiny")), model=("", ("", *PRESETS, *MODELS)),
        recipe=("bert", tuple(RECIPES)), head=("auto", ("auto", "new")),
        network=(network, _networks(task)), features="", vectors="", as_text=False, mesh="data",
        **{"data": ""} if known else {})
    form = None
    if chosen.as_text:
        form = text_form(task, known, tfds="data" in vars(chosen) and chosen.data == "tfds")
        task, base = "text_to_text", "encoder_decoder"
        if chosen.network != "linear":
            raise UserError(f"as_text=true generates texts, without a head, and network={chosen.network} is below a "
                            "head; leave one of them out")
    if not (chosen.init or chosen.model or chosen.size == "tiny"):
        chosen.model = "none" if chosen.features or chosen.vectors else model
    built = chosen.model or base
    config = default_config(built, task, "examples", "bert", chosen.mesh)
    config.name, config.init, config.head, config.length = known or task, chosen.init, chosen.head, 128
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 0.1})
    if known:
        _use(config, KNOWN[known], chosen.data)
    if form:
        config.objective.update(form.objective)
        for name, value in form.data.items():
            config.data[name] = value
        config.checkpoint.best = form.objective["metrics"][0]
    recipe = RECIPES["features" if chosen.model == "none" else chosen.recipe]
    config.update_from_flattened_dict({**recipe[""], **recipe.get(known, {})})
    for section, fields in own.items():
        config.update({section: fields})
    if not chosen.init:
        if form:  # it gives texts back as they were
            config.tokenizer.update({"name": "sentencepiece_unigram", "lowercase": False})
        _from_scratch(config, chosen, built)
    _use_frozen(config, chosen)
    if chosen.network != "linear":
        config.objective.update({"network": chosen.network, **networks.FIELDS.get(chosen.network, {})})
    return config


class Reading(NamedTuple):
    """How a network reads the texts of a task.

    Attributes:
      model: fields of `config.model` that differ from those that it was given.
      head: fields of a task's head that the network asks for.
      network: with the fields of `model`.
    """

    model: Mapping[str, Any]
    head: Mapping[str, Any]
    network: Model


def reading_fields(task: str, model: Mapping[str, Any]) -> Reading:
    """How the network of the fields `config.model` reads the texts of a task in `TASKS`: an encoder-decoder that
    generates texts with its encoder alone, unless it is to generate; a network that does not read both sides, from left
    to right."""
    name, objective = model.get("name", "transformer"), TASKS[task].objective
    definition, fields = MODELS[name], {key: value for key, value in model.items() if key != "name"}

    def build(own: Mapping[str, Any]) -> Model:
        return definition.build(read(definition.config, {**fields, **own}, "config.model"), Execution(), name)

    own, network = {}, build({})
    if Context.SOURCE in network.conditions_on and objective.conditions_on(objective.config()) != Context.SOURCE:
        own = dict(definition.encoder)
        network = build(own)
    head = {} if Context.BOTH in network.conditions_on else {"context": "left"}
    return Reading(own, head | ({"pooling": "mean"} if network.head_style.pooling == "mean" else {}), network)


def _use_frozen(config: ml_collections.ConfigDict, chosen: SimpleNamespace) -> None:
    """The frozen parts that were chosen."""
    parts = {name: path for name, path in (("features", chosen.features), ("words", chosen.vectors)) if path}
    for name in parts:
        if name not in config.objective:
            raise UserError(f"the task {config.objective.name} reads no {'word vectors' if name == 'words' else name}; "
                            "leave them out")
    if chosen.features:
        config.objective.features.layers = "mix:all"
    if chosen.vectors:
        config.objective.words.lookup = "both"
    if chosen.model == "none" and not chosen.features and "pooling" in config.objective:
        config.objective.pooling = "mean"  # special tokens have no vector of their own
    config.frozen = parts


def _networks(task: str) -> tuple[str, ...]:
    """The networks that a task may have between encoder and head."""
    field = TASKS[task].objective.config.__dataclass_fields__.get("network")
    return field.metadata["bounds"].choices if field else ("linear",)


def compose_known(argument: str, known: str, network: str = "linear", model: str = "") -> ml_collections.ConfigDict:
    """The config of a known data set; arguments as in `compose_task`."""
    return compose_task(argument, choose(KNOWN, known, "the known set").task, known, network, model)


def _use(config: ml_collections.ConfigDict, known: KnownSet, data: str) -> None:
    """The files of a known set in the folder `data`, which may lack the test file, or its form in TFDS; "" leaves them
    to be given."""
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
    """The network `name` from random parameters, and a tokenizer of the training texts."""
    preset = PRESETS.get(name)
    if preset:
        config.tokenizer.update({"name": preset.tokenizer, "lowercase": preset.lowercase,
                                 "vocab_size": preset.config.vocab})
        config.objective.update({name: value for name, value in TASKS[config.objective.name].objective.published.get(
            preset.family, {}).items() if name in config.objective})
    reading = reading_fields(config.objective.name, config.model)
    config.model.update(reading.model)
    config.objective.update({name: value for name, value in reading.head.items() if name in config.objective})
    if not preset and "characters" in reading.network.inputs:
        config.tokenizer.update({"name": "elmo", "lowercase": False})
    config.model.vocab = 0
    if chosen.size == "tiny":
        config.model.update(MODELS[config.model.name].tiny)
        if config.model.max_length:
            config.model.max_length = config.length
        config.tokenizer.vocab_size = 4096
        config.update_from_flattened_dict({"optimizer.learning_rate": 1e-3, "epochs": 5.0, "steps": 0,
                                           "optimizer.schedule.warmup": 0,
                                           "optimizer.schedule.warmup_fraction": 0.1})
