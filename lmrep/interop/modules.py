"""Wraps a model and its parameters as a Flax module, Linen or NNX, to use and train inside other modules.

    run = lmrep.load("runs/mine")
    encoder = modules.linen(run.model, run.params["encoder"])    # inside a linen.Module: encoder(Inputs(tokens=...))
    encoder = modules.nnx(run.model, run.params["encoder"])      # an nnx.Module that holds nnx.Param

Both call the model's pure `encode`, so outputs and gradients are the same. The parameters are a copy: training them
does not change those of the run.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as flax_linen
from flax import nnx as flax_nnx

from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.models.base import Encoded, Inputs, Model


class LinenEncoder(flax_linen.Module):
    """A Linen module with one variable, `params/encoder`, the model's parameter tree. Made by `linen`."""

    encode: Callable[..., Encoded]
    initial: Callable[[Array], Tree]

    @flax_linen.compact
    def __call__(self, inputs: Inputs, *, deterministic: bool = True, **options) -> Encoded:
        """Calls the model's `encode` with `options` as its keywords. Unless `deterministic`, dropout uses the stream
        "dropout"."""
        params = self.param("encoder", self.initial)
        return self.encode(params, inputs, None if deterministic else self.make_rng("dropout"), **options)


def linen(model: Model, params: Tree | None = None) -> LinenEncoder:
    """Wraps a model as a Linen module.

    Args:
      model: for example `lmrep.load(...).model`.
      params: the parameters that the module's `init` returns, as in `model.specs`; None to initialize them with the key
        of `init`.
    """
    return LinenEncoder(model.encode, lambda key: P.init(model.specs, key) if params is None else _copy(params))


class NNXEncoder(flax_nnx.Module):
    """An NNX module that holds `nnx.Param`s in `params`, a tree like the model's. Made by `nnx`."""

    def __init__(self, encode: Callable[..., Encoded], params: Tree):
        self.encode = flax_nnx.static(encode)
        self.params = flax_nnx.data(jax.tree.map(flax_nnx.Param, params))

    def __call__(self, inputs: Inputs, *, rngs: flax_nnx.Rngs | None = None, **options) -> Encoded:
        """Calls the model's `encode` with `options` as its keywords. With `rngs`, dropout uses its stream "dropout"."""
        params = jax.tree.map(lambda p: p[...], self.params, is_leaf=lambda p: isinstance(p, flax_nnx.Variable))
        return self.encode(params, inputs, None if rngs is None else rngs.dropout(), **options)


def nnx(model: Model, params: Tree | None = None, *, rngs: flax_nnx.Rngs | None = None) -> NNXEncoder:
    """Wraps a model as an NNX module.

    Args:
      model: for example `lmrep.load(...).model`.
      params: its parameters, as in `model.specs`; None to initialize them from `rngs`.
      rngs: the stream "params" initializes parameters.

    Raises:
      ValueError: neither `params` nor `rngs` is given.
    """
    if params is None and rngs is None:
        raise ValueError("give the parameters, or rngs to draw them from: modules.nnx(model, rngs=nnx.Rngs(0))")
    return NNXEncoder(model.encode, P.init(model.specs, rngs.params()) if params is None else _copy(params))


def _copy(params: Tree) -> Tree:
    return jax.tree.map(jnp.array, params)
