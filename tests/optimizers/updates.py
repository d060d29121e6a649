"""Parameters of stacked layers, and updates of them by each optimizer."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from lmrep import optimizers
from lmrep.core.params import ParamSpec, flatten, map_paths, stacked, unflatten
from lmrep.optimizers import OPTIMIZERS, ScheduleConfig, adafactor, adagrad, adamw, sgd
from tests.cases import slow_after

LAYERS, STEPS = 4, 3
CONSTANT = ScheduleConfig("constant")
LAYER = {
    "mlp": {"kernel": ParamSpec((4, 6), ("embed", "mlp")), "bias": ParamSpec((6,), ("mlp",))},
    "norm": {"scale": ParamSpec((4,), (None,))},
}
TOKEN = {"token": ParamSpec((10, 4), ("vocab", "embed"))}
STACKED = {"encoder": {"embedding": TOKEN, "layers": stacked(LAYER, LAYERS)}}
UNSTACKED = {"encoder": {"embedding": TOKEN, "layers": {str(i): LAYER for i in range(LAYERS)}}}
CONFIGS = {
    "adamw": adamw.Config("adamw", decay_skip=("*/bias", "*norm/*", "*/layers/2/*")),
    "lamb": adamw.Config("lamb", decay_skip=("*/bias", "*norm/*", "*/layers/2/*"), weight_decay=0.1),
    "adafactor": adafactor.Config("adafactor", factor_from=4),
    "adamw_corrected": adamw.Config("adamw", betas=(0.9, 0.98), bias_correction=True, clip=0.0),
    "adafactor_unfactored": adafactor.Config("adafactor", parameter_scale=False),
    "adagrad": adagrad.Config("adagrad"),
    "sgd": sgd.Config("sgd", momentum=0.9),
}
CONFIGS |= {name: row.config(name=name) for name, row in OPTIMIZERS.items()
            if name not in {config.name for config in CONFIGS.values()}}
every = pytest.mark.parametrize("config", slow_after(3, [
    dataclasses.replace(c, learning_rate=0.1, schedule=CONSTANT) for c in CONFIGS.values()]), ids=CONFIGS)


def values(specs, seed, scale=1.0):
    """Random arrays, of very different size from layer to layer and tensor to tensor."""
    def draw(path, spec):
        rng = np.random.default_rng([seed, *path.encode()])
        sizes = np.logspace(-2, 2, spec.shape[0]).reshape(-1, *[1] * (len(spec.shape) - 1))
        return (scale * sizes * rng.normal(size=spec.shape)).astype(np.float32)
    return map_paths(draw, specs)


def unstack(tree):
    """A tree as STACKED in the shape of UNSTACKED."""
    leaves = {}
    for path, x in flatten(tree).items():
        head, stack, tail = path.partition("/layers/")
        leaves.update({f"{head}/layers/{i}/{tail}": np.asarray(x)[i] for i in range(LAYERS)} if stack else {path: x})
    return unflatten(leaves)


def train(config, specs, params, gradients, **extra):
    """Parameters after each update, and the last state; `extra` are arguments of `update`."""
    optimizer = optimizers.build(config, specs, 100)
    state, history = jax.jit(optimizer.init)(params), []

    @jax.jit
    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    for grads in gradients:
        params, state = update(params, state, grads)
        history.append(params)
    return history, state


def numpy_of(history):
    return [{path: np.asarray(x) for path, x in flatten(p).items()} for p in history]
