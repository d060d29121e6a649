"""Configs of the trainer: checkpoints, validation, logs, and the assumptions of the cost estimate."""

from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.training.faults import FaultsConfig


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save checkpoints, and which to keep."""

    every: int = setting(1000, "steps between checkpoints; the last step is always saved, and unless keep_best is 0 "
                         "each step whose validation is better than all checkpoints; 0, for labelled examples: at each "
                         "validation", at_least=0)
    keep: int = setting(3, "number of newest checkpoints to keep", at_least=1)
    keep_best: int = setting(1, "number of best checkpoints to keep in addition; 0: none, and no extra checkpoint is "
                             "saved for the best validation", at_least=0)
    steps: tuple[int, ...] = setting((), "further steps whose checkpoints are saved and always kept, such as "
                                     "(0, 1, 2, 4, 8, 16), to study how a network learns")
    words: tuple[int, ...] = setting((), "of pretraining: numbers of words of the text, counted in every epoch, after "
                                     "which checkpoints are saved and always kept; `steps` becomes their steps")
    best: str = setting("loss", "the validation metric that compares checkpoints, minimized or maximized as the metric "
                        "defines; only a checkpoint whose step validates has a value; empty: the first of "
                        "objective.metrics, for a task")
    load: str = setting("newest", "the checkpoint that is used when the finished run is loaded",
                        choices=("newest", "best"))


@dataclass(frozen=True)
class EvaluationConfig:
    """When to validate, and on which examples."""

    every: int = setting(1000, "steps between validations; the first and the last step always validate; 0, for "
                         "labelled examples: once an epoch", at_least=0)
    examples: int = setting(2048, "number of validation examples: the first ones, or, for labelled data, at equal "
                            "distances; 0: all", at_least=0)
    patience: int = setting(0, "early stopping: training ends after this many validations in a row, of the last stage, "
                            "whose checkpoint.best is not better than the best before; 0: it does not", at_least=0)
    averaged: bool = setting(True, "with averages (optimizer.ema, nt_asgd): validate with the averaged "
                             "parameters, and use them when the run is loaded")
    seed: int = setting(0, "the seed of masks, sentence pairs and other random draws of evaluations, independent of "
                        "the run's seed", at_least=0, at_most=2**32 - 1)


@dataclass(frozen=True)
class LogConfig:
    """What to log while training."""

    every: int = setting(50, "steps between lines of metrics.jsonl", at_least=1)
    tensorboard: bool = setting(True, "write TensorBoard events")
    wandb: str = setting("", "Weights & Biases project; empty: none")
    report: bool = setting(True, "write report.html at the end")


@dataclass(frozen=True)
class CostConfig:
    """The assumptions for converting energy to CO2, and time to a price."""

    pue: float = setting(1.58, "power usage effectiveness: the energy of the data centre divided by that of its "
                         "computers (Strubell et al., 2019, as the mean of 2018: 1.58)", at_least=1)
    grid: float = setting(0.4327, "kg of CO2 equivalents per kWh of the grid (Strubell et al., 2019, for the United "
                          "States: 0.954 lb)", at_least=0)
    price_per_hour: float = setting(0.0, "price of one device for an hour, in any currency; 0: unknown", at_least=0)
    device_watts: float = setting(0.0, "power of one device, for an estimate if its energy cannot be measured; 0: its "
                                  "published power, if known", at_least=0)


@dataclass(frozen=True)
class TrainerConfig:
    """When to save, validate and log, and how to treat faults."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()
    faults: FaultsConfig = FaultsConfig()
