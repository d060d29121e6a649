"""A trained model in hand: loaded from its workdir, asked from Python or inside one's own `jax.jit`."""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from lmrep import assembly
from lmrep import experiment as experiments
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import Tree
from lmrep.data import tokenizers
from lmrep.experiment import Experiment
from lmrep.models.base import Model
from lmrep.objectives.base import Objective
from lmrep.training.checkpoints import Checkpoints
from lmrep.training.stages import locate

CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained run, loaded.

    Attributes:
      directory: its workdir.
      step: of the checkpoint.
      experiment: its record.
      tokenizer: its own.
      model: the network; `model.encode(params["encoder"], ...)` is a pure function.
      objective: of the stage that the checkpoint is of.
      params: arrays as `objective.specs`, whole on the first device.
    """

    directory: Path
    step: int
    experiment: Experiment
    tokenizer: tokenizers.Tokenizer
    model: Model
    objective: Objective
    params: Tree

    def fill_masks(self, texts: Sequence[str], k: int = 5) -> list[list[list[tuple[str, float]]]]:
        """For each text and each [MASK] in it, the k likeliest pieces with their probabilities.

        Raises:
          UserError: a text has no [MASK], or is longer than the model.
        """
        special = self.tokenizer.vocabulary.specials
        rows = masked_rows(texts, self.tokenizer, self.model.length)
        answers: list = [None] * len(rows)
        for members in _alike(rows):
            batch = _mask_batch([rows[i] for i in members], special, self.model.length)
            found = jax.device_get(self._predict(self.params, batch, k=min(k, self.tokenizer.size)))
            for row, i in enumerate(members):
                number = int((rows[i] == special["mask"]).sum())
                answers[i] = [
                    [(self.tokenizer.piece(int(w)), float(p)) for w, p in zip(words, shares, strict=True)]
                    for words, shares in zip(found["words"][row], found["probabilities"][row], strict=True)][:number]
        return answers

    @functools.cached_property
    def _predict(self) -> Callable:
        return jax.jit(self.objective.predict, static_argnames="k")


def load(directory: str | os.PathLike, step: int | None = None) -> Run:
    """The run in `directory`, at its newest checkpoint that verifies or at `step`.

    Raises:
      UserError: there is no run.
      RunFault: no checkpoint verifies.
    """
    directory = Path(directory)
    record = read_config(directory)
    experiment = experiments.parse(record["config"])
    tokenizer = tokenizers.load(directory / "tokenizer")
    if tokenizer.fingerprint != record["data"]["tokenizer"]:
        raise RunFault(f"{directory / 'tokenizer'} is not the tokenizer that the run was trained with; restore it")
    model = assembly.model(experiment, tokenizer.vocabulary)
    checkpoints = Checkpoints(directory / "checkpoints")
    with contextlib.closing(checkpoints):
        steps = checkpoints.steps()
        if not steps:
            raise UserError(f"{directory} holds no checkpoint yet; train first: lmrep train --workdir={directory} ...")
        if step is not None and step not in steps:
            raise UserError(f"{directory} holds no checkpoint {step}; it holds {', '.join(map(str, steps))}")
        step = checkpoints.newest() if step is None else step
        params, _ = checkpoints.read(step, "params")
    params = jax.device_put(params, jax.devices()[0])
    return Run(directory, step, experiment, tokenizer, model, assembly.objective(
        stage_at(experiment, step), model, tokenizer.vocabulary), params)


def stage_at(experiment: Experiment, step: int) -> experiments.StagePlan:
    """The stage that made checkpoint `step`."""
    stages = experiments.plans(experiment)
    return stages[locate(stages, max(step - 1, 0))[0]]


def read_config(directory: str | os.PathLike) -> dict:
    """A workdir's config.json: {"config": ..., "data": fingerprints}.

    Raises:
      UserError: it is not there.
      RunFault: it is damaged.
    """
    path = Path(directory) / CONFIG
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise UserError(f"there is no run in {directory}: {CONFIG} is missing; give the --workdir of a run") from None
    except ValueError as error:
        raise RunFault(f"{path} is damaged: {error}; restore it, or start anew in another --workdir") from None


def masked_rows(texts: Sequence[str], tokenizer: tokenizers.Tokenizer, longest: int) -> list[np.ndarray]:
    """The ids int32[t] of each text, between [CLS] and [SEP].

    Raises:
      UserError: a text has no [MASK], more than `longest` tokens, or is no Unicode text.
    """
    special, rows = tokenizer.vocabulary.specials, []
    for text in texts:
        try:
            ids = tokenizer.encode(text, specials=True).ids
        except TypeError:  # lone surrogates, which stand for bytes of an argument that could not be decoded
            raise UserError(f"{text[:60]!r} is not UTF-8 text; convert it") from None
        row = np.array([special["cls"], *ids, special["sep"]], np.int32)
        if not (row == special["mask"]).any():
            raise UserError(f"there is no [MASK] in {text!r}; write [MASK] where a word is to be found")
        if len(row) > longest:
            raise UserError(f"{text[:60]!r}... has {len(row)} tokens; the model takes {longest} at most")
        rows.append(row)
    return rows


def _alike(rows: Sequence[np.ndarray], most: int = 32) -> list[list[int]]:
    """Groups of row numbers of like length, at most `most` a group, so that little is padding."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    return [order[i : i + most] for i in range(0, len(order), most)]


def _mask_batch(rows: Sequence[np.ndarray], special: Mapping[str, int], longest: int) -> dict[str, np.ndarray]:
    """Rows padded to a power of two, so that few shapes are compiled."""
    def room(n: int) -> int:
        return 1 << (n - 1).bit_length()

    b, t = room(len(rows)), min(max(16, room(max(map(len, rows)))), longest)
    m = room(max(int((row == special["mask"]).sum()) for row in rows))
    tokens, segments = np.full((b, t), special["pad"], np.int32), np.zeros((b, t), np.int32)
    predicted = np.zeros((b, m), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
        places = np.flatnonzero(row == special["mask"])
        predicted[i, : len(places)] = places
    return {"tokens": tokens, "segment_ids": segments, "predicted": predicted}
