"""Measures attention heads: importance by gradients, and scores of a run with gated heads (Michel et al., 2019)."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.host import default_data_dir
from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import stage_at
from lmrep.inference.evaluate import evaluator, read_split
from lmrep.inference.load import objective_params
from lmrep.inference.run import Run
from lmrep.models.base import Encoded, Inputs, Model, check_heads, with_gates
from lmrep.objectives.base import Objective
from lmrep.training.step import prepare_keys

GATES = "gates"  # among the parameters of `gated_objective`
EPS = 1e-20  # added to the norm of a layer's scores, as in the released code


class Gated(NamedTuple):
    """A run whose heads can be gated."""

    run: Run
    importance: Callable[[np.ndarray], np.ndarray]  # gates float32[l, h] -> float64[l, h], on the training examples
    score: Callable[[np.ndarray], float]  # gates float32[l, h] -> the metric of the validation examples
    metric: str  # its name
    higher_is_better: bool  # of the metric
    sizes: dict[str, int]  # numbers of examples by split: of the training data, and of the split that is scored


def gated(
    run: Run, training: int = 1000, validation: int = 0, split: str = "validation", normalize: bool = True,
    data_dir: str | Path | None = None,
) -> Gated:
    """Gates the heads of a run, with the data that it was trained on.

    Args:
      run: a run of a task or of pretraining, not a converted one.
      training: number of training examples for importance; 0: all. The examples of a task are evenly spaced.
      validation: number of examples of `split` for scores; 0: all.
      split: the split that is scored; "" for importance alone.
      normalize: divide the importance of each layer by its L2 norm.

    Raises:
      UserError: the network has no attention heads, or no gates on them; the run lacks the data or a head.
    """
    check_heads(run.model, f"the network {run.model.name!r} of {run.directory}")
    stage, data_dir = stage_at(run.experiment, run.step), Path(data_dir or default_data_dir())
    splits = {name: read_split(run, stage, name, data_dir, examples=limit or None)
              for name, limit in {"train": training, **({split: validation} if split else {})}.items()}
    train, metric = splits["train"], run.experiment.checkpoint.best if splits["train"].records else "loss"
    make = partial(build.objective, stage, vocabulary=train.vocabulary, frozen=run.frozen)
    step = importance_step(make, run.model, run.experiment.evaluation.seed)
    params, indices = objective_params(run, make(run.model)), np.arange(stage.batch_size)
    evaluate = evaluator(run, gated_objective(make, run.model), stage, splits[split]) if split else None
    return Gated(
        run, lambda gates: importance(step, params, train.batches(indices, stage.batch_size), gates, normalize),
        lambda gates: evaluate(params | {GATES: jnp.asarray(gates)}).metrics[metric], metric,
        metric != "loss" and experiments.best_direction(run.experiment) == "max",
        {name: part.number for name, part in splits.items()})


def gated_objective(make: Callable[[Model], Objective], model: Model) -> Objective:
    """Makes the objective `make(model)`, whose `loss` and `predict` read the gates [l, h] at params["gates"]."""
    plain = make(model)
    gates = ParamSpec((len(model.heads.kept()), model.heads.number), (None, None))

    def with_gates_of(name: str) -> Callable:
        def function(params: Tree, *arguments: Any, **options: Any) -> Any:
            ungated = {key: value for key, value in params.items() if key != GATES}
            return getattr(make(with_gates(model, params[GATES])), name)(ungated, *arguments, **options)
        return function

    return plain._replace(specs=plain.specs | {GATES: gates}, loss=with_gates_of("loss"),
                          predict=with_gates_of("predict") if plain.predict else None)


def importance(
    step: Callable, params: Tree, batches: Iterable[dict[str, np.ndarray]], gates: np.ndarray, normalize: bool = True
) -> np.ndarray:
    """Estimates the importance of heads, float64[l, h], as the released code does: the absolute value of context vector
    times gradient at each token, summed over tokens, without dropout. The loss is a sum over what the objective
    averages: examples, words or masked tokens.

    The sums of a layer are divided by the number of tokens. Where the network computes its last layer only at some
    positions, the sums of that layer are divided by their number: for classification, the number of examples.

    Args:
      step: made by `importance_step`.
      params: the parameters of the objective, without gates.
      batches: of training examples.
      gates: float32[l, h]; heads whose gates are 0 get 0.
      normalize: divide the scores of each layer by their L2 norm.
    """
    sums, tokens, positions = np.zeros(gates.shape), 0, 0
    for number, batch in enumerate(batches):
        scores, batch_tokens, batch_positions = jax.device_get(step(params, batch, gates, np.int32(number)))
        sums, tokens, positions = sums + scores, tokens + int(batch_tokens), positions + int(batch_positions)
    counts = np.full((len(gates), 1), max(1, tokens))
    counts[-1] = max(1, positions)
    scores = sums / counts * (gates > 0)
    return scores / (np.linalg.norm(scores, axis=1, keepdims=True) + EPS) if normalize else scores


def importance_step(make: Callable[[Model], Objective], model: Model, seed: int) -> Callable:
    """Compiles (params, batch, gates, index of the batch) -> (sums float32[l, h], number of tokens, number of positions
    in the last layer) for the objective `make(model)`. `seed` determines its draws, such as masks."""
    plain = make(model)

    @jax.jit
    def step(params: Tree, batch: dict, gates: Array, number: Array) -> tuple[Array, Array, Array]:
        prepared = plain.prepare(prepare_keys(plain, batch, seed, number), batch)
        shape, real = batch["tokens"].shape, (batch["segment_ids"] > 0).sum()
        some = []  # filled during tracing

        def loss(by_token: Array) -> Array:
            objective = make(_recording(with_gates(model, by_token), some))
            return objective.loss(params, prepared, None, objective.carry(shape[0]))[0]

        grads = jax.grad(loss)(jnp.broadcast_to(gates[:, None], (len(gates), math.prod(shape), gates.shape[1])))
        averaged = (prepared["weights"] > 0).sum() if "weights" in prepared else (batch["example"] >= 0).sum()
        return averaged * jnp.abs(grads).sum(1), real, averaged if any(some) else real

    return step


def _recording(model: Model, some: list[bool]) -> Model:
    """Returns `model` whose `encode` appends to `some` whether the last layer is computed only at positions `at`."""
    def encode(
        params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, **options: Any
    ) -> Encoded:
        some.append(at is not None)
        return model.encode(params, inputs, key, at=at, **options)

    return model._replace(encode=encode)
