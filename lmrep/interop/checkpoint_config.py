"""What a config takes from the checkpoint that a run starts from, or whose vectors it reads: network, tokenizer and
head."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from lmrep.config import loading
from lmrep.core import remote
from lmrep.core.paths import as_path
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.experiment import fine_tuning, page_files, recorded
from lmrep.experiment.choices import ALL_OBJECTIVES, is_task
from lmrep.interop import conversion
from lmrep.interop.huggingface.read import describe, read_network
from lmrep.interop.init_from import directory_of
from lmrep.tasks import TASKS, networks


def load_config(
    file: str | os.PathLike, argument: str = "", overrides: Sequence[tuple[str, str]] = ()
) -> ml_collections.ConfigDict:
    """The config of an experiment file, or of one that comes with the package, with the overrides.

    Where `get_config` sets `init`, the config takes network and tokenizer of that checkpoint, and its head if both are
    of one task, before the overrides; where it sets `frozen["features"]` of a task instead, the tokenizer of that one.

    Raises:
      UserError: as `lmrep.config.loading.load` and `adopt_checkpoint`.
    """
    config = loading.load(page_files.find(file), argument)
    if "init_mapping" in dict(overrides):
        config = loading.apply_overrides(config, [(k, v) for k, v in overrides if k == "init_mapping"])
        overrides = [(k, v) for k, v in overrides if k != "init_mapping"]
    if config.get("init"):
        head = dict(overrides).get("head", config.get("head", ""))
        adopt_checkpoint(config, config.init, new_head=head.strip("'\"") == "new")
        if is_task(config) and 0 < config.model.get("max_length", 0) < config.length:
            config.length = config.model.max_length
    elif is_task(config) and config.get("frozen", {}).get("features"):
        adopt_features(config, config.frozen["features"])
    config = loading.apply_overrides(config, overrides)
    for name, path in config.get("frozen", {}).items():  # a run may be resumed from another directory
        config.frozen[name] = remote.as_url(path) or (str(Path(as_path(path)).absolute()) if path else "")
    return config


def adopt_checkpoint(
    config: ml_collections.ConfigDict, path: str | os.PathLike, new_head: bool | None = None
) -> None:
    """Sets `config.init` to a checkpoint, and the network and the tokenizer to those of that checkpoint, in place. With
    `config.init_mapping`, which may take parameters from another network, the network stays as it is. The config of a
    task gets the head that suits the network: that of the checkpoint, with its labels, if it was trained
    for the same task; otherwise that of its published system.

    Args:
      config: of an experiment.
      path: of a workdir or a published directory.
      new_head: whether the head starts anew, so that its labels are those of the data; by default as `config.head`.

    Raises:
      UserError: there is no checkpoint.
    """
    directory = directory_of(path)
    config.init = _absolute(path, directory)
    network, tokenizer = adopt_tokenizer(config, path)
    kept = dropout_fields(network)
    if not config.get("init_mapping"):
        config.model = {**network, **{name: value for name, value in config.model.items() if name in kept}}
        if is_task(config):
            config.model.update(fine_tuning.reading_fields(config.objective.name, network).model)
    if is_task(config):
        fields = head_fields(directory, config.objective.name, tokenizer.vocabulary.specials.get("pad"))
        labels = fields.pop("labels", ())
        if new_head is None:
            new_head = config.get("head") == "new"
        if not new_head and set(config.objective.get("labels") or labels) == set(labels):
            fields["labels"] = labels
        _set_head(config, fields)


def _set_head(config: ml_collections.ConfigDict, fields: Mapping[str, Any]) -> None:
    """Sets those of these fields of a head that the task has. A network with fields of its own stays, with its pooling
    and its frozen features."""
    own = networks.FIELDS.get(config.objective.get("network", ""), {})
    kept = {"network", *({"pooling", "features"} & own.keys())} if own else ()
    config.objective.update({name: value for name, value in fields.items()
                             if name in config.objective and name not in kept})


def adopt_tokenizer(
    config: ml_collections.ConfigDict, path: str | os.PathLike
) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """Sets the tokenizer of a config to that of a workdir or a published directory, in place. Returns the fields of the
    network there, and the tokenizer. Raises UserError if there is neither."""
    directory = directory_of(path)
    folder = "tokenizer" if conversion.is_workdir(directory) else ""
    network = recorded.read(directory)[0].model if folder else read_network(directory)
    tokenizer = tokenizers.load(directory / folder)
    vocab_file = f"{_absolute(path, directory)}/{folder}".rstrip("/")
    config.tokenizer.update(name=tokenizer.name, vocab_file=vocab_file, vocab_size=max(tokenizer.size, 64),
                            lowercase=tokenizer.lowercase)
    return dict(network), tokenizer


def _absolute(path: str | os.PathLike, directory: Path) -> str:
    """A path that stays valid: a run may be resumed from another directory, or on another machine."""
    return remote.as_url(path) or str(directory.absolute())


def dropout_fields(network: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a network's config that a run keeps when it takes the network of a checkpoint."""
    return experiments.model_def(network).dropout_fields


def adopt_features(config: ml_collections.ConfigDict, path: str | os.PathLike) -> None:
    """Sets the tokenizer of a task's config to that of the frozen encoder `path`, in place; where nothing else is
    encoded (the network "none"), also what its texts look like.

    Raises:
      UserError: there is no checkpoint.
    """
    directory = directory_of(path, "features")
    network, tokenizer = adopt_tokenizer(config, path)
    if config.model.name != "none":
        return
    for name in ("max_length", "token_types"):
        config.model[name] = network.get(name, 0)
    pad = tokenizer.vocabulary.specials.get("pad")
    fields = head_fields(directory, config.objective.name, pad)
    _set_head(config, {"context": "both"} | {name: fields[name] for name in ("context", "pooling") if name in fields})
    if 0 < config.model.max_length < config.length:
        config.length = config.model.max_length


def head_fields(path: Path, task: str, pad: int | None) -> dict[str, Any]:
    """The fields of a task's config that belong to its head, as they suit the network of a checkpoint.

    Args:
      path: of a workdir or a published directory.
      task: in `TASKS`.
      pad: the tokenizer's id of padding.
    """
    published = TASKS[task].objective.published
    if not conversion.is_workdir(path):
        found, reading = describe(path), fine_tuning.reading_fields(task, read_network(path))
        own = found.task.fields if found.task and found.task.task == task else {}
        left = {"context": "left"} if found.family.causal else {}
        return {**reading.head, **published.get(found.family.pretraining.preset, {}), **left, **own}
    experiment = recorded.read(path)[0]
    stage = experiments.resolve_stages(experiment)[-1]
    if stage.objective_name == task:
        return {name: value for name, value in dataclasses.asdict(stage.objective).items()
                if name in conversion.HEAD_FIELDS}
    family, reading = conversion.family_of(path, experiment, pad), fine_tuning.reading_fields(task, experiment.model)
    context = ALL_OBJECTIVES[stage.objective_name].conditions_on(stage.objective)
    if context not in ("both", "left"):  # a task reads both directions, where there are two
        context = reading.head.get("context", "both")
    return {**reading.head, **(published.get(family.pretraining.preset, {}) if family else {}), "context": context}
