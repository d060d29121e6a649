"""What a run of pretraining reads of its text: a limit of epochs, and checkpoints by words."""

import dataclasses
import itertools
import logging
import math
from pathlib import Path
from typing import NamedTuple

from lmrep.core.errors import UserError
from lmrep.experiment import build
from lmrep.experiment.config import resolve_stages
from lmrep.experiment.record import Data, Experiment

log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """The epochs of a run, by step."""

    ends: list[int]  # the last step of each stage
    rates: list[float]  # epochs of a step of each stage

    def epochs(self, step: int) -> float:
        """Returns the epochs that are read until a step."""
        begins = [0, *self.ends[:-1]]
        return sum(rate * max(0, min(step, end) - begin)
                   for rate, begin, end in zip(self.rates, begins, self.ends, strict=True))

    def step(self, epochs: float) -> float:
        """Returns the step, with its fraction, at which so many epochs are read; inf if that is after the last."""
        begins, done = [0, *self.ends[:-1]], 0.0
        for rate, begin, end in zip(self.rates, begins, self.ends, strict=True):
            if done + rate * (end - begin) >= epochs:
                return begin + (epochs - done) / rate
            done += rate * (end - begin)
        return math.inf


def progress(data: Data, data_dir: Path) -> Progress:
    """Returns the epochs of each step of a run of pretraining over the training split."""
    stages = resolve_stages(data.experiment)
    return Progress([*itertools.accumulate(stage.steps for stage in stages)], [
        build.epochs(stage, build.plan(stage, data.splits["train"], data.experiment.seed, data_dir), 1)
        for stage in stages])


def resolved(data: Data, data_dir: Path) -> Experiment:
    """Returns the experiment with `checkpoint.steps` of its `checkpoint.words`: the nearest step, from 1 on, of each
    number of words that the run reads, in their order. Warns of numbers that it does not reach.

    Raises:
      UserError: the run reads its text more often than `data.max_epochs`; `checkpoint` has words and other steps, or
        words for labelled examples.
    """
    experiment, saving = data.experiment, data.experiment.checkpoint
    if saving.words and not data.corpus:
        raise UserError(f"checkpoint.words is {saving.words}, of the text that pretraining reads; give a task "
                        "checkpoint.steps")
    if not data.corpus or not (experiment.data.max_epochs or saving.words):
        return experiment
    read, most = progress(data, data_dir), experiment.data.max_epochs
    total = read.epochs(experiment.steps)
    if most and total > most:
        raise UserError(f"{experiment.steps:,} steps are {total:.2f} epochs of the training split, and data.max_epochs "
                        f"is {most:g}; set --config.steps={math.floor(experiment.steps * most / total)} or fewer")
    if not saving.words:
        return experiment
    per_epoch = data.corpus.statistics["train"]["words"]
    reached = [read.step(words / per_epoch) for words in sorted(saving.words)]
    steps = tuple(max(1, round(step)) for step in reached if step < math.inf)
    if missed := [f"{words:,}" for words in sorted(saving.words)[len(steps):]]:
        log.warning("checkpoint.words has %s, and the run reads %s words of its training split: it saves no checkpoint "
                    "of that name", ", ".join(missed), f"{int(total * per_epoch):,}")
    if other := sorted({*saving.steps} - {*steps}):
        raise UserError(f"checkpoint.steps has {', '.join(map(str, other))}, and checkpoint.words decides the steps; "
                        "give one of them")
    return dataclasses.replace(experiment, checkpoint=dataclasses.replace(saving, steps=steps))
