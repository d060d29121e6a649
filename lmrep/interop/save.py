"""Makes a workdir of parameters that another training loop has trained."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.params import Tree, flatten
from lmrep.core.paths import as_path
from lmrep.data import tokenizers
from lmrep.experiment import build, frozen
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, stage_at
from lmrep.interop.checkpoint_config import config_of
from lmrep.interop.conversion import new_workdir
from lmrep.training.state import trainable

MOST = 5  # differences of a kind that a message lists


def save(
    params: Tree, config: Experiment | Mapping[str, Any] | str | os.PathLike,
    tokenizer: tokenizers.Tokenizer | str | os.PathLike, directory: str | os.PathLike, *, step: int = 0,
) -> Path:
    """Writes a workdir of parameters from a training loop of your own, which `load`, `evaluate`, `convert` and `init=`
    take as they take a trained run.

        params = ...                                            # started from run.params, and updated
        lmrep.save(params, run.experiment, run.tokenizer, "runs/mine")

    Args:
      params: arrays as in `Run.params`, nested or by path: those of the network under "encoder", those of the objective
        under "objective". The latter may be left out as a whole; what needs them is refused later.
      config: the experiment of a run (`run.experiment`), or a config as `train` takes it.
      tokenizer: `run.tokenizer`, or the directory of a tokenizer.
      directory: the new workdir; it must not exist, or be empty.
      step: the number of the checkpoint.

    Returns:
      The directory.

    Raises:
      UserError: parameters are missing, unknown, or of another shape; the message names them. Or the tokenizer does not
        fit the config, or `directory` is not empty.
      RunFault: the directory cannot be written.
    """
    experiment = config if isinstance(config, Experiment) else experiments.parse(config_of(config))
    if not isinstance(tokenizer, tokenizers.Tokenizer):
        tokenizer = tokenizers.load(Path(as_path(tokenizer)))
    network = experiments.build_model(experiment, tokenizer.size)
    parts = frozen.load(experiment, tokenizer.tokens, teachers=False)
    objective = build.objective(stage_at(experiment, step), network, tokenizer.vocabulary, parts)
    values = flatten(jax.device_get(trainable(params)))
    _check(values, {path: spec.shape for path, spec in flatten(objective.specs).items()}, objective.name)
    values = {path: np.asarray(value, np.float32) for path, value in values.items()}
    target = Path(as_path(directory))
    with new_workdir(None, target, experiment, tokenizer, values, step):
        return target


def _check(values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], objective: str) -> None:
    """Raises UserError if the paths, shapes or types of parameters are not those of the objective."""
    if not any(path.startswith("objective/") for path in values):  # the network alone
        shapes = {path: shape for path, shape in shapes.items() if path.startswith("encoder/")}
    kinds = {"unknown": [], "of another shape or type": [], "missing": [
        f"{path} is missing; expected {shape}" for path, shape in shapes.items() if path not in values]}
    for path, value in values.items():
        if path not in shapes:
            kinds["unknown"].append(f"{path} is unknown{suggestion(path, shapes)}")
        elif np.shape(value) != shapes[path]:
            kinds["of another shape or type"].append(f"{path} is {np.shape(value)}; expected {shapes[path]}")
        elif not jnp.issubdtype(np.asarray(value).dtype, jnp.floating):
            kinds["of another shape or type"].append(
                f"{path} is of {np.asarray(value).dtype}; expected floating-point numbers")
    lines = [line for kind, wrong in kinds.items() for line in (
        *wrong[:MOST], *([f"and {len(wrong) - MOST} more that are {kind}"] if len(wrong) > MOST else []))]
    if lines:
        raise UserError(f"the parameters are not those of this config (objective {objective!r}):\n  "
                        + "\n  ".join(lines) + "\nGive parameters as in Run.params, or their own config")
