"""From the config of a page to an experiment: what it takes from a checkpoint, and the overrides; and from the
experiment of a run to an evaluation.

All functions are pure: they return new configs, and read nothing but their arguments.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from lmrep import optimizers
from lmrep.config.loading import override
from lmrep.core.errors import UserError
from lmrep.experiment import fine_tuning, small_networks
from lmrep.experiment.config import build_model, model_def, resolve_stages
from lmrep.experiment.record import ALL_OBJECTIVES, AUTO, Experiment
from lmrep.tasks import TASKS, networks

CHOICES = ("optimizer.name", "optimizer.schedule.name")  # fields that decide which settings a section has


class CheckpointFacts(NamedTuple):
    """What a config takes from a checkpoint, as `lmrep.interop.checkpoint_config.facts` reads it."""

    path: str  # of the checkpoint, valid from any directory
    network: Mapping[str, Any]  # the fields of its network's config
    tokenizer: Mapping[str, Any]  # the fields of `config.tokenizer` that load its tokenizer
    # the fields of a task's objective that suit its network; {} where the config is no task's
    head: Mapping[str, Any] = {}


def resolve(
    config: Mapping[str, Any], overrides: Sequence[tuple[str, str]] = (), facts: CheckpointFacts | None = None
) -> ml_collections.ConfigDict:
    """Adds the network, tokenizer and head of a checkpoint to the config of a page, and then the overrides.

    Args:
      config: what `get_config` returned.
      overrides: (path, text) of single fields, in order.
      facts: of the checkpoint `config.init` or, of a task that starts from none, `config.frozen["features"]`.

    Raises:
      UserError: an override is invalid.
    """
    # These decide whether the network and the tokenizer are taken.
    first = [(path, text) for path, text in overrides if path in ("init_mapping", "init_vocabulary")]
    config = apply_overrides(config, first)
    if facts and config.get("init"):
        head = dict(overrides).get("head", config.get("head", ""))
        config = with_checkpoint(config, facts, new_head=head.strip("'\"") == "new")
        if config.objective.name in TASKS:
            config = _shortened(config)
    elif facts:
        config = with_features(config, facts)
    overrides = [pair for pair in overrides if pair not in first]
    applied = apply_overrides(config, overrides)
    if applied.get("budget") and "steps" in dict(overrides):
        raise UserError(f"config.budget is {applied.budget} and config.steps {applied.steps:,}; give the time or the "
                        "number of steps, and leave out the other")
    given = [path for path, _ in overrides]
    if applied.get("budget") or applied.get("recipe") == AUTO:
        applied.update_from_flattened_dict({
            path: value for path, value in small_networks.fields(applied).items()
            if not any(path == other or path.startswith(f"{other}.") for other in given)})
    return applied


def apply_overrides(config: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> ml_collections.ConfigDict:
    """Returns a copy of a config with the overrides, in order. Those that choose an optimizer or a schedule come first,
    since other overrides change its settings. Raises UserError for an invalid override."""
    config = ml_collections.ConfigDict(config).lock()
    for path, text in overrides:
        if path in CHOICES:
            override(config, path, text)
    if "optimizer" in config:  # it and its schedule get the settings of their rows
        optimizer = optimizers.completed(config.to_dict()["optimizer"], "config.optimizer")
        for section, fields in ((config.optimizer, optimizer), (config.optimizer.schedule, optimizer["schedule"])):
            with section.unlocked():
                for key in {*section} - {*fields}:
                    del section[key]
                section.update({key: value for key, value in fields.items() if key not in section})
    for path, text in overrides:
        if path not in CHOICES:
            override(config, path, text)
    return config


def with_checkpoint(
    config: Mapping[str, Any], facts: CheckpointFacts, new_head: bool | None = None
) -> ml_collections.ConfigDict:
    """Returns the config of a run that starts from a checkpoint, with the checkpoint's network and tokenizer.

    With `config.init_mapping`, which may take parameters from another network, the network stays as it is. With
    `config.init_vocabulary` "match", the tokenizer does, and the network gets the size of its vocabulary. A task gets
    the head and labels of a checkpoint of the same task, and otherwise the head of its published system.

    Args:
      config: of an experiment.
      facts: of the checkpoint.
      new_head: whether the head starts anew, with the labels of the data; by default as `config.head`.
    """
    config = ml_collections.ConfigDict(config).copy_and_resolve_references()
    config.init = facts.path
    same = config.get("init_vocabulary", "same") == "same"
    if same:
        config.tokenizer.update(facts.tokenizer)
    elif config.tokenizer.get("direction", "forward") != facts.tokenizer["direction"]:
        raise UserError(f"tokenizer.direction is {config.tokenizer.direction!r}, and config.init reads text "
                        f"{facts.tokenizer['direction']}; set --config.tokenizer.direction to the same")
    task = config.objective.name in TASKS
    if not config.get("init_mapping"):
        kept = model_def(facts.network).dropout_fields
        config.model = {**facts.network, **{name: value for name, value in config.model.items() if name in kept},
                        **({} if same else {"vocab": 0})}
        if task:
            config.model.update(fine_tuning.task_network(config.objective.name, facts.network).model)
    if task:
        fields = dict(facts.head)
        labels = fields.pop("labels", ())
        if new_head is None:
            new_head = config.get("head") == "new"
        if not new_head and set(config.objective.get("labels") or labels) == set(labels):
            fields["labels"] = labels
        config.objective.update(_head_fields(config, fields))
    return config


def with_features(config: Mapping[str, Any], facts: CheckpointFacts) -> ml_collections.ConfigDict:
    """Returns the config of a task that reads the vectors of a frozen encoder, with the encoder's tokenizer. If nothing
    else is encoded (the network "none"), texts have its token types and its largest length."""
    config = ml_collections.ConfigDict(config).copy_and_resolve_references()
    config.tokenizer.update(facts.tokenizer)
    if config.model.name != "none":
        return config
    config.model.update({name: facts.network.get(name, 0) for name in ("max_length", "token_types")})
    fields = {"context": "both"} | {name: facts.head[name] for name in ("context", "pooling") if name in facts.head}
    config.objective.update(_head_fields(config, fields))
    return _shortened(config)


def with_model_fields(experiment: Experiment, fields: Mapping[str, Any]) -> Experiment:
    """Changes `evaluation_fields` of an experiment's network. Raises UserError for other fields."""
    definition, name = model_def(experiment.model), experiment.model["name"]
    if refused := sorted(fields.keys() - set(definition.evaluation_fields)):
        known = ", ".join(definition.evaluation_fields)
        raise UserError(f"{refused[0]} of the network {name!r} cannot differ from the run's; "
                        + (f"these can: {known}" if known else "it has no field that can; leave it out"))
    experiment = dataclasses.replace(experiment, model={**experiment.model, **fields})
    build_model(experiment)  # checks them
    return experiment


def with_objective_fields(experiment: Experiment, fields: Mapping[str, Any]) -> Experiment:
    """Changes `evaluation_fields` of an experiment's objective; those of a nested record are merged with the run's.
    Raises UserError for other fields."""
    name = experiment.objective["name"]
    definition = ALL_OBJECTIVES[name]
    if refused := sorted(fields.keys() - set(definition.evaluation_fields)):
        value = fields[refused[0]]
        given = ", ".join(value) if isinstance(value, Mapping) else refused[0]
        raise UserError(f"{given} is given, and the run was trained with objective {name!r}, which has no such choice; "
                        "leave it out")
    merged = {key: {**experiment.objective.get(key, {}), **value} if isinstance(value, Mapping) else value
              for key, value in fields.items()}
    experiment = dataclasses.replace(experiment, objective={**experiment.objective, **merged})
    for stage in resolve_stages(experiment):
        ALL_OBJECTIVES[stage.objective_name].check(stage.objective)
    return experiment


def _shortened(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Limits the length of texts to the positions of the network, in place."""
    if 0 < config.model.get("max_length", 0) < config.length:
        config.length = config.model.max_length
    return config


def _head_fields(config: ml_collections.ConfigDict, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the fields of a head that the task has. A head with a network keeps that network, its pooling and its
    frozen features."""
    kept = networks.FIELDS.get(config.objective.get("network", ""), {})
    kept = {"network", *({"pooling", "features"} & kept.keys())} if kept else ()
    return {name: value for name, value in fields.items() if name in config.objective and name not in kept}
