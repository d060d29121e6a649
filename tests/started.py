"""Runs before their first step: configs that take the network of a checkpoint, and stages with initial values."""

from lmrep.experiment import build, frozen, resolve
from lmrep.experiment import config as experiments
from lmrep.interop import checkpoint_config, init_from
from lmrep.tasks import TASKS


def from_checkpoint(config, path):
    """The config with network, tokenizer and head of a checkpoint."""
    task = config.objective.name if config.objective.name in TASKS else ""
    return resolve.with_checkpoint(config, checkpoint_config.facts(path, task))


def from_features(config, path):
    """The config of a task with the tokenizer of a frozen encoder."""
    return resolve.with_features(config, checkpoint_config.facts(path, config.objective.name, "features"))


def stages(config, data_dir):
    """(data, stages) of the config, with initial values."""
    data = build.prepare_data(experiments.parse(config), data_dir)
    parts = frozen.load(data.experiment, data.tokenizer.tokens)
    first, *others = build.stages(data, data_dir, parts)
    return data, [init_from.initialized(first, data.experiment, data.tokenizer), *others]
